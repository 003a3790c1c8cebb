package replicaid

import (
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	name := NewName()
	for _, tt := range []struct{ id, replica, random string }{
		{New("br_", name, "0b8d6f0e-1c7a-4c55-8d0a-8b1f4c2d9e10"), name, "0b8d6f0e-1c7a-4c55-8d0a-8b1f4c2d9e10"},
		{New("br_", "", "0b8d6f0e-1c7a-4c55-8d0a-8b1f4c2d9e10"), "", "0b8d6f0e-1c7a-4c55-8d0a-8b1f4c2d9e10"},
		{"br_abc_x", "", "abc_x"},
		{"br_AB3DE_x", "", "AB3DE_x"},
		{"br_", "", ""},
	} {
		if replica, random, ok := Cut("br_", tt.id); !ok || replica != tt.replica || random != tt.random {
			t.Errorf("Cut(br_, %s) = %q, %q, %v, want %q, %q, true", tt.id, replica, random, ok, tt.replica, tt.random)
		}
	}
	if _, _, ok := Cut("res_", "br_"+name+"_x"); ok {
		t.Error("Cut(res_, br_…) = true, want false")
	}
	if n := len(New("foldgate-suspended:", name, strings.Repeat("A", 25))); n > 50 {
		t.Errorf("the longest id has %d bytes, more than 50", n)
	}
}

// An id that was made comes apart as it was put together; any text is cut without a panic, and nothing
// of it is lost.
func FuzzCut(f *testing.F) {
	f.Add("br_", "br_abcde_0b8d6f0e")
	f.Add("res_", "res__")
	f.Fuzz(func(t *testing.T, kind, id string) {
		replica, random, ok := Cut(kind, id)
		if ok && New(kind, replica, random) != id {
			t.Errorf("Cut(%q, %q) = %q, %q: New makes %q of it", kind, id, replica, random, New(kind, replica, random))
		}
	})
}
