package preview

// Of returns the kind of a text.
func Of(text string) Kind { return read(text).kind }
