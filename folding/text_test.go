package folding

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{"plain text\n\twith layout", "plain text\n\twith layout"},
		{"a\x00b\x07c\x1b[31md\x7fe\u0085f", "abc[31mdef"},
		{"line\r\nend", "line\nend"},
		{"user\u202egnp.exe\u2066x\u2069", "usergnp.exex"},
		{"in\u200bvisi\u2060ble\ufeff\u00ad", "invisible"},
		{"tag \U000E0068\U000E0069\U000E007F.", "tag ."},
		{"selector\U000E0100.", "selector."},
		{"para\u2028graph\u2029", "paragraph"},
		{"private \U000F0000\U00100000.", "private ."},
		{"family 👨\u200d👩\u200d👧 café naïve العربية हिन्दी 漢字", "family 👨\u200d👩\u200d👧 café naïve العربية हिन्दी 漢字"},
		{"icon \ue0b0", "icon \ue0b0"}, // private use of the basic plane: fonts for terminals
		{"bad\xffutf8\xc3", "bad\uFFFDutf8\uFFFD"},
	}
	for _, tt := range tests {
		if got := clean(tt.in); got != tt.want {
			t.Errorf("clean(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

// FuzzClean: clean returns valid and visible text that is not longer. A second
// clean changes nothing, and visible text is unchanged.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "abc", "a\x00", "\u202e", "\xff", "\U000E0041", "👨\u200d👩", "\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, invisible) {
			t.Errorf("clean(%q) = %q: invalid or invisible", s, got)
		}
		if clean(got) != got {
			t.Errorf("clean(%q) is not a fixed point", s)
		}
		if utf8.RuneCountInString(got) > utf8.RuneCountInString(s) {
			t.Errorf("clean(%q) = %q: longer", s, got)
		}
		if utf8.ValidString(s) && !strings.ContainsFunc(s, invisible) && got != s {
			t.Errorf("clean(%q) = %q: changed", s, got)
		}
		for _, max := range []int{1, 3, 10} {
			if c := cut(got, max); utf8.RuneCountInString(c) > max || !utf8.ValidString(c) {
				t.Errorf("cut(%q, %d) = %q", got, max, c)
			}
		}
	})
}

// FuzzIsBranchID: IsBranchID accepts nothing but "br_" and a UUID.
func FuzzIsBranchID(f *testing.F) {
	for _, s := range []string{"", "br_", "br_6ba7b810-9dad-11d1-80b4-00c04fd430c8", "br_{6ba7b810-9dad-11d1-80b4-00c04fd430}", "br_6ba7b8109dad11d180b400c04fd430c8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !IsBranchID(s) {
			return
		}
		if len(s) != 39 || !strings.HasPrefix(s, "br_") || strings.Trim(s[3:], "0123456789abcdefABCDEF-") != "" {
			t.Errorf("IsBranchID(%q) = true", s)
		}
	})
}
