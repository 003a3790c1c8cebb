package budget

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

var update = flag.Bool("update", false, "write the vocabulary files anew")

// published returns a vocabulary as OpenAI publishes it: bytes of a token to its rank.
func published(tb testing.TB, name string) map[string]int {
	tb.Helper()
	ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe(name + ".tiktoken")
	if err != nil {
		tb.Fatal(err)
	}
	return ranks
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

// splits computes the content of a vocabulary file. It is also the proof of
// what the merge relies on: byte pair encoding builds every token, by a last
// merge of two parts that both have a lower rank, or are single bytes.
func splits(ranks map[string]int) ([]byte, error) {
	size := 0
	for _, r := range ranks {
		size = max(size, r+1)
	}
	file := bytes.Repeat([]byte{0xff}, splitBytes*size)
	ordered := make([]string, size)
	for token, rank := range ranks {
		ordered[rank] = token
	}
	joined := map[[2]rune]bool{}
	for rank, token := range ordered {
		if token == "" {
			continue
		}
		if len(token) > longestToken {
			return nil, fmt.Errorf("token %d %q has %d bytes, more than %d", rank, token, len(token), longestToken)
		}
		left, right, flags := 0, noRank, uint64(0)
		if len(token) == 1 {
			left = int(token[0])
		} else {
			parts := byteParts(token, ranks, rank)
			if len(parts) != 2 {
				return nil, fmt.Errorf("token %d %q: merges end in %d parts, want 2", rank, token, len(parts))
			}
			left, right = ranks[parts[0]], ranks[parts[1]]
			if len(parts[0]) > 1 && left >= rank || len(parts[1]) > 1 && right >= rank {
				return nil, fmt.Errorf("token %d %q: its parts %d and %d rank no lower", rank, token, left, right)
			}
			if r, w := utf8.DecodeRuneInString(token); w == len(token) && w > 1 && r < 1<<16 {
				flags |= isChar
			}
			if bridge([]byte(parts[0]), []byte(parts[1])) {
				flags |= isBridge
			} else if s, ok := seam([]byte(parts[0]), []byte(parts[1])); ok && !joined[s] {
				joined[s] = true
				flags |= isSeam
			}
		}
		v := uint64(left) | uint64(right)<<rankBits | flags
		for i := range splitBytes {
			file[splitBytes*rank+i] = byte(v >> (8 * i))
		}
	}
	return file, nil
}

// bridge reports whether the merge of two tokens is one that units has to know
// of: one that first joins two characters, so that the right part begins one,
// where one of the parts has only some of the bytes of the character at the seam.
func bridge(left, right []byte) bool {
	return utf8.RuneStart(right[0]) && !(endsWhole(left) && utf8.FullRune(right))
}

// byteParts merges text with the tokens that rank below limit.
func byteParts(text string, ranks map[string]int, limit int) []string {
	var parts []string
	for i := range len(text) {
		parts = append(parts, text[i:i+1])
	}
	for {
		best, at := limit, -1
		for i := range len(parts) - 1 {
			if r, ok := ranks[parts[i]+parts[i+1]]; ok && r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return parts
		}
		parts[at] += parts[at+1]
		parts = append(parts[:at+1], parts[at+2:]...)
	}
}

// TestTables makes the embedded files anew from the published vocabularies and
// compares; with -update it writes them.
func TestTables(t *testing.T) {
	for _, name := range []string{"o200k_base", "cl100k_base", "p50k_base"} {
		want, err := splits(published(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := "vocabulary/" + name + ".splits"
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from the published vocabulary: run go generate", file)
		}
	}
}

// TestSharedTable holds what lets r50k_base do without a file of its own: it is
// the start of p50k_base.
func TestSharedTable(t *testing.T) {
	short, long := published(t, "r50k_base"), published(t, "p50k_base")
	for token, rank := range short {
		if long[token] != rank || rank >= r50kSize {
			t.Fatalf("token %q: rank %d in r50k_base, %d in p50k_base", token, rank, long[token])
		}
	}
	for token, rank := range long {
		if _, ok := short[token]; !ok && rank < r50kSize {
			t.Fatalf("token %q of p50k_base has rank %d and is not in r50k_base", token, rank)
		}
	}
}
