package upstream

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/foldgate/foldgate/proxy/wire"
)

type streamEvent struct {
	name string // "" for the default, message
	data wire.Bounded
}

// position is how far a stream was read.
type position struct {
	id    string        // of the last complete event that had one
	retry time.Duration // the pause that the server wants before a reconnect, 0 if it names none
}

// eventReader reads a text/event-stream as the HTML standard defines it: line ends of all three
// kinds, comments, a byte order mark, data over several lines. It keeps at most max bytes of an
// event; see wire.Bounded.
type eventReader struct {
	br  *bufio.Reader
	max int
	pos *position

	id      string // of the event that is being read
	afterCR bool   // a line end may go on with LF
	begun   bool   // the first line is over
}

const (
	sseBuffer    = 4 << 10 // net/http buffers as well
	sseMaxValue  = 4 << 10 // of any field but data
	sseMaxField  = 32      // a field name with a byte order mark, colon and space
	sseMaxRetry  = 5 * time.Minute
	sseByteOrder = "\xef\xbb\xbf"
)

// newEventReader returns a reader of a stream that goes on from pos, which it updates.
func newEventReader(r io.Reader, max int, pos *position) *eventReader {
	return &eventReader{br: bufio.NewReaderSize(r, sseBuffer), max: max, pos: pos, id: pos.id}
}

// next returns the next event that has data. Events without data may change the position. An event
// that the end of the stream cuts short does not count. Unknown fields and values that are too long
// are ignored.
func (r *eventReader) next() (streamEvent, error) {
	ev, some := streamEvent{data: wire.Bounded{Max: r.max}}, false
	for {
		line, err := r.line()
		if err != nil {
			return streamEvent{}, err
		}
		if !r.begun {
			line.Head, r.begun = bytes.TrimPrefix(line.Head, []byte(sseByteOrder)), true
		}
		field, value, _ := bytes.Cut(line.Head, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch name := string(field); {
		case len(line.Head) == 0:
			r.pos.id = r.id
			if some {
				return ev, nil
			}
			ev.name = ""
		case name == "data":
			if some {
				ev.data.Add([]byte{'\n'})
			}
			some = true
			ev.addData(value, &line)
		case line.Tail != nil || len(value) > sseMaxValue:
		case name == "event":
			ev.name = string(value)
		case name == "id" && httpguts.ValidHeaderFieldValue(string(value)): // else it can't go into Last-Event-ID
			r.id = string(value)
		case name == "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				r.pos.retry = min(time.Duration(ms)*time.Millisecond, sseMaxRetry)
			}
		}
	}
}

// addData adds the value of line, which may be only its beginning.
func (ev *streamEvent) addData(value []byte, line *wire.Bounded) {
	if d := &ev.data; d.Size == 0 && len(value) <= d.Max {
		d.Head, d.Size = value, len(value) // without a copy, since most events have one line
	} else {
		d.Add(value)
	}
	if line.Tail != nil {
		ev.data.Size += line.Size - len(line.Head)
		ev.data.Tail = line.Tail
	}
}

// line reads one line, without its end. If it is cut, its value is longer than all limits.
func (r *eventReader) line() (wire.Bounded, error) {
	l := wire.Bounded{Max: max(r.max, sseMaxValue) + sseMaxField}
	for {
		if _, err := r.br.Peek(1); err != nil {
			return l, err
		}
		buf, _ := r.br.Peek(r.br.Buffered())
		if r.afterCR {
			r.afterCR = false
			if buf[0] == '\n' {
				_, _ = r.br.Discard(1)
				continue
			}
		}
		end := bytes.IndexByte(buf, '\n')
		if end < 0 {
			end = len(buf)
		}
		if cr := bytes.IndexByte(buf[:end], '\r'); cr >= 0 {
			end = cr
		}
		l.Add(buf[:end])
		if end == len(buf) {
			_, _ = r.br.Discard(end)
			continue
		}
		r.afterCR = buf[end] == '\r'
		_, _ = r.br.Discard(end + 1)
		return l, nil
	}
}
