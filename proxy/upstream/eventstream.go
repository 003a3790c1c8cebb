package upstream

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

// streamEvent is one event of a text/event-stream.
type streamEvent struct {
	name string // "" for the default, message
	data wire.Bounded
}

// eventReader reads a text/event-stream as the HTML standard defines it: line
// ends of all three kinds, comments, a byte order mark, data over several
// lines. It keeps at most max bytes of an event; see wire.Bounded.
type eventReader struct {
	br  *bufio.Reader
	max int
	// lastID is the id of the last complete event that had one.
	lastID string
	// retry is the pause that the server wants before a reconnect, 0 if it names
	// none.
	retry time.Duration

	afterCR bool // a line end may go on with LF
	begun   bool // the first line is over

	// the line that is being read
	field, value []byte
	colon, blank bool // colon seen; nothing of the value seen yet

	// the event that is being read
	event streamEvent
	lines int // of data
	id    string
}

const (
	sseBuffer    = 4 << 10 // net/http buffers as well
	sseMaxField  = 16      // the longest field name that means anything has 5 bytes
	sseMaxValue  = 4 << 10
	sseMaxRetry  = 5 * time.Minute
	sseByteOrder = "\xef\xbb\xbf"
)

func newEventReader(r io.Reader, max int) *eventReader {
	return &eventReader{br: bufio.NewReaderSize(r, sseBuffer), max: max}
}

// next returns the next event that has data. Events without data may change
// lastID and retry. An event that the end of the stream cuts short does not
// count.
func (r *eventReader) next() (streamEvent, error) {
	for {
		r.field, r.value, r.colon, r.blank = r.field[:0], r.value[:0], false, true
		if err := r.line(); err != nil {
			return streamEvent{}, err
		}
		if !r.begun {
			r.field = bytes.TrimPrefix(r.field, []byte(sseByteOrder))
			r.begun = true
		}
		if len(r.field) > 0 || r.colon {
			r.endLine()
			continue
		}
		ev, some := r.event, r.lines > 0
		r.lastID = r.id
		r.event, r.lines = streamEvent{data: wire.Bounded{Max: r.max}}, 0
		if some {
			return ev, nil
		}
	}
}

// line passes one line to piece, without its end.
func (r *eventReader) line() error {
	for {
		if _, err := r.br.Peek(1); err != nil {
			return err
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
		r.piece(buf[:end])
		if end == len(buf) {
			_, _ = r.br.Discard(end)
			continue
		}
		r.afterCR = buf[end] == '\r'
		_, _ = r.br.Discard(end + 1)
		return nil
	}
}

// piece takes the next bytes of a line.
func (r *eventReader) piece(p []byte) {
	if !r.colon {
		i := bytes.IndexByte(p, ':')
		name := p
		if i >= 0 {
			name = p[:i]
		}
		r.field = append(r.field, name[:min(len(name), sseMaxField-len(r.field))]...)
		if i < 0 {
			return
		}
		r.colon = true
		p = p[i+1:]
		if !r.begun {
			r.field = bytes.TrimPrefix(r.field, []byte(sseByteOrder))
		}
		if string(r.field) == "data" {
			r.beginData()
		}
	}
	if r.blank && len(p) > 0 {
		r.blank = false
		if p[0] == ' ' {
			p = p[1:]
		}
	}
	if string(r.field) == "data" {
		r.event.data.Add(p)
	} else if len(r.value) <= sseMaxValue { // one byte more marks it as too long
		r.value = append(r.value, p[:min(len(p), sseMaxValue+1-len(r.value))]...)
	}
}

func (r *eventReader) beginData() {
	r.event.data.Max = r.max
	if r.lines++; r.lines > 1 {
		r.event.data.Add([]byte{'\n'})
	}
}

// endLine takes a line that is not blank. It ignores unknown fields and values
// that are too long.
func (r *eventReader) endLine() {
	if len(r.value) > sseMaxValue {
		return
	}
	switch string(r.field) {
	case "data":
		if !r.colon {
			r.beginData()
		}
	case "event":
		r.event.name = string(r.value)
	case "id":
		if bytes.IndexByte(r.value, 0) < 0 {
			r.id = string(r.value)
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(r.value), 10, 31); err == nil {
			r.retry = min(time.Duration(ms)*time.Millisecond, sseMaxRetry)
		}
	}
}
