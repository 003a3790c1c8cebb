// Package faults has the faults of configurations.
package faults

import (
	"errors"
	"fmt"
)

// Fault is one error in a configuration.
type Fault struct {
	// Key is the path of the value, such as "folding.max_depth"; "" for the file.
	Key string
	// Line is the key's line in the file; 0 if the file does not have the key, or is not known.
	Line int
	// Msg states the error and the remedy. It may quote a value of the configuration.
	Msg string
}

// Error returns the message after the line and the key, if they are known.
func (f Fault) Error() string {
	s := f.Msg
	if f.Key != "" {
		s = f.Key + ": " + s
	}
	if f.Line > 0 {
		s = fmt.Sprintf("line %d: %s", f.Line, s)
	}
	return s
}

// List collects faults.
type List []Fault

// Add adds a fault.
func (l *List) Add(key, format string, args ...any) {
	*l = append(*l, Fault{Key: key, Msg: fmt.Sprintf(format, args...)})
}

// If adds a fault if bad is true.
func (l *List) If(bad bool, key, format string, args ...any) {
	if bad {
		l.Add(key, format, args...)
	}
}

// Under adds the faults of a part of the configuration. Their keys follow path.
func (l *List) Under(path string, part []Fault) {
	for _, f := range part {
		f.Key = path + f.Key
		*l = append(*l, f)
	}
}

// Err returns the faults as one error, one a line; nil for none.
func (l List) Err() error {
	errs := make([]error, len(l))
	for i, f := range l {
		errs[i] = f
	}
	return errors.Join(errs...)
}
