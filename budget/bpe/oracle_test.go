package bpe

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

var testEncodings = []string{"o200k_base", "cl100k_base", "p50k_base", "r50k_base"}

// A counter counts strings by a Tokenizer.
type counter struct {
	*Tokenizer
	name string
}

func mustTokenizer(tb testing.TB, name string) *counter {
	tb.Helper()
	t, ok := map[string]*Tokenizer{"o200k_base": O200kBase, "cl100k_base": CL100kBase, "p50k_base": P50kBase, "r50k_base": R50kBase}[name]
	if !ok {
		tb.Fatalf("no encoding %q", name)
	}
	return &counter{t, name}
}

// smallCounter returns a counter with windows and stream buffers so small that
// ordinary text takes every path made for long pieces.
func smallCounter(tb testing.TB, name string, window, buffer int) *counter {
	small := *mustTokenizer(tb, name).Tokenizer
	small.window, small.buffer, small.idle = window, buffer, make(chan *worker, 1)
	return &counter{&small, name}
}

func (c *counter) Name() string                    { return c.name }
func (c *counter) Count(text string) int           { return c.Tokenizer.Count(bytesOf(text)) }
func (c *counter) Exceeds(text string, n int) bool { return c.Tokenizer.Exceeds(bytesOf(text), n) }

func (c *counter) Truncate(text string, n int) (kept string, tokens int) {
	length, tokens := c.Tokenizer.Truncate(bytesOf(text), n)
	return text[:length], tokens
}

// bytesOf returns the bytes of text, which must not be changed.
func bytesOf(text string) []byte {
	return unsafe.Slice(unsafe.StringData(text), len(text))
}

var oracles = struct {
	sync.Mutex
	made map[string]*tiktoken.Tiktoken
}{made: map[string]*tiktoken.Tiktoken{}}

// oracle returns tiktoken-go for an encoding.
func oracle(tb testing.TB, name string) *tiktoken.Tiktoken {
	tb.Helper()
	oracles.Lock()
	defer oracles.Unlock()
	if oracles.made[name] == nil {
		tiktoken.SetBpeLoader(loader.NewOfflineLoader())
		enc, err := tiktoken.GetEncoding(name)
		if err != nil {
			tb.Fatal(err)
		}
		oracles.made[name] = enc
	}
	return oracles.made[name]
}
