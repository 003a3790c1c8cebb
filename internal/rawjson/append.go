package rawjson

import "strconv"

// An Appender appends the members of objects to B without reflection. Its methods write a comma before
// a member that is not the first. Except for Key they leave zero values out. The caller writes brackets.
type Appender struct{ B []byte }

// Key appends a key, whose value the caller appends next.
func (a *Appender) Key(name string) {
	if a.B[len(a.B)-1] != '{' {
		a.B = append(a.B, ',')
	}
	a.B = append(append(append(a.B, '"'), name...), `":`...)
}

// Text appends a member with a string.
func (a *Appender) Text(name, v string) {
	if v != "" {
		a.Key(name)
		a.B = AppendQuote(a.B, v)
	}
}

// Number appends a member with a whole number.
func (a *Appender) Number(name string, v int64) {
	if v != 0 {
		a.Key(name)
		a.B = strconv.AppendInt(a.B, v, 10)
	}
}

// Flag appends a member that is true.
func (a *Appender) Flag(name string, v bool) {
	if v {
		a.Key(name)
		a.B = append(a.B, "true"...)
	}
}
