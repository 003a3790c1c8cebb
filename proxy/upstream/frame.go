package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	frameBuffer = 32 << 10 // per link; larger frames are gathered in another
	frameKept   = 2 << 20  // up to which that one is used again, by any link
	frameEdge   = 4 << 10  // how much of either end of an oversized frame is kept
)

// frame is one line of a stdio stream, or what is left of one too large.
type frame struct {
	// data is the line without its end; where size exceeds the limit, only its
	// first bytes.
	data []byte
	// borrowed says that data is valid until the next read only.
	borrowed bool
	// size is the length of the whole line.
	size int
	// tail holds the last bytes of a line that was too large, else nil.
	tail []byte
}

// frameReader cuts a stream into lines, of which it keeps at most max bytes
// each: a longer one is skipped, not stored.
type frameReader struct {
	br  *bufio.Reader
	max int
	big *[]byte // of bigFrames: where the last frame was gathered; nil if br held it
}

// bigFrames are buffers of frames larger than frameBuffer.
var bigFrames = sync.Pool{New: func() any { return new([]byte) }}

func newFrameReader(r io.Reader, max int) *frameReader {
	return &frameReader{br: bufio.NewReaderSize(r, frameBuffer), max: max}
}

// next returns the next line. At the end of the stream an unfinished line
// comes first, then the error.
func (r *frameReader) next() (frame, error) {
	if r.big != nil {
		bigFrames.Put(r.big)
		r.big = nil
	}
	line, err := r.br.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		if len(line) == 0 {
			return frame{}, err
		}
		if len(line) <= r.max {
			return frame{data: bytes.TrimRight(line, "\r\n"), borrowed: true, size: len(line)}, nil
		}
	}
	buf := bigFrames.Get().(*[]byte)
	b := bounded{max: r.max, head: (*buf)[:0]}
	b.add(line)
	for err == bufio.ErrBufferFull {
		line, err = r.br.ReadSlice('\n')
		b.add(line)
	}
	if b.tail == nil && cap(b.head) <= frameKept {
		*buf, r.big = b.head, buf
	}
	return frame{data: bytes.TrimRight(b.head, "\r\n"), borrowed: r.big != nil, size: b.size, tail: b.tail}, nil
}

// bounded gathers bytes, of which it keeps all as long as they are at most
// max, and from then on only both ends.
type bounded struct {
	max  int
	head []byte
	tail []byte // nil as long as head holds all
	size int
}

func (b *bounded) add(p []byte) {
	b.size += len(p)
	switch {
	case b.tail != nil:
		b.tail = lastBytes(b.tail, p)
	case b.size <= b.max:
		if b.size > cap(b.head) { // append would grow by a quarter, and copy a large frame five times
			b.head = append(make([]byte, 0, max(b.size, min(2*cap(b.head), b.max))), b.head...)
		}
		b.head = append(b.head, p...)
	default:
		all := append(b.head, p...)
		b.head = bytes.Clone(all[:min(len(all), frameEdge, b.max)])
		b.tail = lastBytes(nil, all)
	}
}

// lastBytes returns the last frameEdge bytes of tail followed by more, as a
// slice of its own.
func lastBytes(tail, more []byte) []byte {
	if n := len(more) - frameEdge; n >= 0 {
		return bytes.Clone(more[n:])
	}
	if n := len(tail) + len(more) - frameEdge; n > 0 {
		tail = tail[n:]
	}
	return append(bytes.Clone(tail), more...)
}

// fragment is what could be read of a message that is not read as a whole.
type fragment struct {
	id     []byte // the id's literal, nil if not found
	method string // "" for a response, or if not found
}

// idAtEnd matches an id that comes after the large member of a message.
var idAtEnd = regexp.MustCompile(`,\s*"id"\s*:\s*("[^"\\]*"|-?\d+)\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*\}\s*$`)

// salvage finds out whose message an unreadable one is, from its first bytes
// and (where they are not the whole) its last ones.
func salvage(head, tail []byte) fragment {
	var f fragment
	rawjson.Members(head, func(m rawjson.Member) bool {
		switch {
		case m.Is("id") && len(m.Value) > 0:
			f.id = bytes.Clone(m.Value)
		case m.Is("method"):
			f.method = rawjson.Unquote(m.Value)
		}
		return true
	})
	if f.id == nil && tail != nil {
		if m := idAtEnd.FindSubmatch(tail); m != nil {
			f.id = bytes.Clone(m[1])
		}
	}
	return f
}

// tooLarge says what is wrong with a message of size bytes; size <= 0 means
// that it was not read to its end.
func tooLarge(size, max int) error {
	if size <= 0 {
		return fmt.Errorf("%w: more than the %d bytes allowed", errUnreadable, max)
	}
	return fmt.Errorf("%w: %d bytes are more than the %d allowed", errUnreadable, size, max)
}

// badMessage says what is wrong with a complete message that ParseMessage did
// not take.
func badMessage(raw []byte, err error) error {
	if errors.Is(err, wire.ErrNotJSON) && rawjson.Depth(raw) > wire.MaxDepth {
		return fmt.Errorf("%w: nests deeper than %d levels", errUnreadable, wire.MaxDepth)
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}

// errorMessage returns an error response.
func errorMessage(id []byte, code int, message string) wire.Message {
	e := append([]byte(`{"code":`), strconv.Itoa(code)...)
	e = append(rawjson.AppendQuote(append(e, `,"message":`...), message), '}')
	return wire.Message{ID: id, Error: e}
}
