package trace

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestNewID(t *testing.T) {
	last := ""
	for range 1000 {
		text := NewID()
		rest, ok := strings.CutPrefix(text, "env_")
		id, err := uuid.Parse(rest)
		if !ok || err != nil || id.Version() != 7 || id.String() != rest {
			t.Fatalf("NewID() = %q, want env_ and a UUIDv7 in its usual form (%v)", text, err)
		}
		if text <= last {
			t.Fatalf("NewID() = %q after %q, want it to sort by time", text, last)
		}
		last = text
	}
}
