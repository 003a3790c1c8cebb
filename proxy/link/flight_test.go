package link

import (
	"errors"
	"testing"
)

// A call hears of its answer from whoever reads it, before the next message is read.
func TestAnsweredIsCalledByTheReader(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{{nil, 1}, {errors.New("unreadable"), 0}} {
		fs, called := newFlights(&Config{}), 0
		f, _, err := fs.begin(&Call{Method: "m", Answered: func() { called++ }}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second is late
			fs.resolve(f.id, outcome{err: tc.err}, nil)
		}
		if called != tc.want {
			t.Errorf("error %v: called %d times, want %d", tc.err, called, tc.want)
		}
	}
}
