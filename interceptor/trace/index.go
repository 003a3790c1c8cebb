package trace

func checkIndex(string) error { return nil }
