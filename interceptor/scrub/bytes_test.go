package scrub

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// apart are the ways to write bytes apart.
var apart = map[string]func(s string) string{
	"colons":      func(s string) string { return strings.TrimSuffix(each(s, "%02x:"), ":") },
	"blanks":      func(s string) string { return strings.TrimSpace(each(s, "%02X ")) },
	"lines":       func(s string) string { return strings.TrimSpace(each(s, "%02x\n")) },
	"hexadecimal": func(s string) string { return "[]byte{" + strings.TrimSuffix(each(s, "0x%02x, "), ", ") + "}" },
	"decimal":     func(s string) string { return "[" + strings.TrimSuffix(each(s, "%d, "), ", ") + "]" },
	"decimal, tight": func(s string) string {
		return `{"type":"Buffer","data":[` + strings.TrimSuffix(each(s, "%d,"), ",") + "]}"
	},
	"decimal, blanks": func(s string) string { return "[" + strings.TrimSpace(each(s, "%d ")) + "]" },
	"decimal, lines":  func(s string) string { return "[\n" + strings.TrimSuffix(each(s, "      %d,\n"), ",\n") + "\n]" },
	"hexdump -C":      func(s string) string { return hex.Dump([]byte(s)) },
	"xxd": func(s string) string {
		var b strings.Builder
		for i := 0; i < len(s); i += 16 {
			row := s[i:min(i+16, len(s))]
			var pairs []string
			for k := 0; k < len(row); k += 2 {
				pairs = append(pairs, hex.EncodeToString([]byte(row[k:min(k+2, len(row))])))
			}
			fmt.Fprintf(&b, "%08x: %-39s  %s\n", i, strings.Join(pairs, " "), strings.Map(func(r rune) rune {
				if r < ' ' || r > '~' {
					return '.'
				}
				return r
			}, row))
		}
		return b.String()
	},
	"xxd -p": func(s string) string {
		digits := hex.EncodeToString([]byte(strings.Repeat("lorem ipsum dolor\n", 6) + s))
		var b strings.Builder
		for row := range chunks(digits, 60) {
			b.WriteString(row + "\n")
		}
		return b.String()
	},
}

// TestBytesApart: a secret is found whose bytes are written apart, as programs print them.
func TestBytesApart(t *testing.T) {
	s := newScrubber(t, Options{})
	n := uint64(0)
	for form, encode := range apart {
		for _, before := range []string{"", "token=", "Wx: ", "\x00\x01\xff\x80", "one line a dump\n"} {
			for _, around := range []string{"%s", "see %s.\nok\n", "a\n\n%s\nb c 12345678\n", "{\"out\": \"%s\"}"} {
				n++
				secret := github(7000 + n)
				for _, hidden := range []string{secret, "AK" + "IA" + strings.NewReplacer("0", "Q", "1", "R", "8", "S", "9", "T").Replace(strings.ToUpper(token(n, "", 16)))} {
					in := fmt.Sprintf(around, encode(before+hidden+"\n"))
					got, found, err := s.Text(t.Context(), in)
					core := encode(hidden)
					core = core[len(core)/2:][:20]
					if form == "xxd -p" {
						core = hex.EncodeToString([]byte(hidden[len(hidden)-4:]))
					}
					if err != nil || len(found) == 0 || strings.Contains(got, core) {
						t.Errorf("%s: Text(%q) = %q, %v, %v", form, in, got, found, err)
					}
					quoted, _ := json.Marshal(map[string]string{"out": in})
					if clean, found, err := s.JSON(t.Context(), quoted); err != nil || len(found) == 0 || !json.Valid(clean) {
						t.Errorf("%s: JSON(%s) = %s, %v, %v", form, quoted, clean, found, err)
					}
				}
			}
		}
	}
	// What is no text, or no secret, stays.
	for _, in := range []string{
		"de:ad:be:ef:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd\n", "1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 121, 98, 120\n", "2024 2025 2026 100 101 102 103 104 105 106 107 108 109\n",
		"00000000  48 65 6c 6c 6f 20 77 6f  72 6c 64 2c 20 68 65 6c  |Hello world, hel|\n00000010  6c 6f                                             |lo|\n00000012\n",
		"add face bad cafe dead beef a b c d e f, the letters\n",
	} {
		if got, found, err := s.Text(t.Context(), in); err != nil || got != in {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
		}
	}
}

// TestArrayOfBytes: in an array of bytes the secret is replaced, and it stays one.
func TestArrayOfBytes(t *testing.T) {
	s := newScrubber(t, Options{})
	secret := github(7500)
	array := func(text string) string {
		b, _ := json.Marshal(json.RawMessage("[" + strings.TrimSuffix(each(text, "%d,"), ",") + "]"))
		return string(b)
	}
	in := `{"id":[1,2,3,4,5,6,7,8,9,10,11,12,13],"out":{"type":"Buffer","data":` + array("token="+secret+"\nok") + `},"n":1}`
	want := `{"id":[1,2,3,4,5,6,7,8,9,10,11,12,13],"out":{"type":"Buffer","data":` + array("token=[REDACTED:github-pat]\nok") + `},"n":1}`
	got, found, err := s.JSON(t.Context(), []byte(in))
	if err != nil || string(got) != want || len(found) != 1 || found[0].Field != "$.out.data" {
		t.Errorf("JSON(%s) = %s, %v, %v, want %s", in, got, found, err, want)
	}
}

// TestMemoryOfNumbers: an array of numbers, which may be bytes, takes little memory.
func TestMemoryOfNumbers(t *testing.T) {
	const most = 8.
	s := newScrubber(t, Options{})
	raw := []byte("[" + strings.Repeat("1,", 1<<19) + "1]")
	scrub := func() {
		if _, _, err := s.JSON(t.Context(), raw); err != nil {
			t.Fatal(err)
		}
	}
	scrub() // makes what is kept
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	scrub()
	runtime.ReadMemStats(&after)
	if times := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(raw)); times > most {
		t.Errorf("%d MB of numbers allocate %.1f times as much, want at most %.0f", len(raw)>>20, times, most)
	}
}
