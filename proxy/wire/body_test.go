package wire

import (
	"io"
	"strings"
	"testing"
)

// wantsReader notes the largest read that was asked of it.
type wantsReader struct {
	io.Reader
	most int
}

func (r *wantsReader) Read(p []byte) (int, error) {
	r.most = max(r.most, len(p))
	return r.Reader.Read(p)
}

// The length that a server promises takes no memory before the bytes arrive.
func TestReadBody(t *testing.T) {
	const limit = 64 << 20
	for _, n := range []int{0, 10, 1 << 20, 3 << 20} {
		body := &wantsReader{Reader: strings.NewReader(strings.Repeat("x", n))}
		got, err := ReadBody(body, int64(n), limit)
		if err != nil || len(got) != n {
			t.Errorf("%d bytes: read %d, %v", n, len(got), err)
		}
	}
	body := &wantsReader{Reader: strings.NewReader("x")}
	if _, _ = ReadBody(body, limit, limit); body.most > 1<<20 {
		t.Errorf("a promise of %d bytes took %d bytes of memory", limit, body.most)
	}
	for _, length := range []int64{-1, 11} {
		if _, err := ReadBody(strings.NewReader("12345678901"), length, 10); err != ErrTooLarge {
			t.Errorf("11 bytes of 10, and a length of %d: %v", length, err)
		}
	}
}
