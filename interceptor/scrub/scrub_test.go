package scrub

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"

	"github.com/google/go-cmp/cmp"
)

// token returns prefix and n random letters and digits, the same for the same
// seed. Tests make their secrets at run time, so that no scanner of secrets
// finds one in this file.
func token(seed uint64, prefix string, n int) string {
	const chars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	rnd := rand.New(rand.NewPCG(seed, 1))
	b := []byte(prefix)
	for range n {
		b = append(b, chars[rnd.IntN(len(chars))])
	}
	return string(b)
}

func github(seed uint64) string { return token(seed, "gh"+"p_", 36) }

const githubMark = "[REDACTED:github-pat]"

func newScrubber(t testing.TB, opts Options) *Scrubber {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestText(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(1)
	uuid := "0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f"
	row := "hunter2!x|" + strings.Repeat("A1=b2|", 40) + "HOST=db.example.com"
	tests := []struct{ name, in, want string }{
		{"clean", "nothing to see here\n", "nothing to see here\n"},
		{"empty", "", ""},
		{"one", "use " + pat + " now", "use " + githubMark + " now"},
		{"two", pat + "\n" + github(2), githubMark + "\n" + githubMark},
		{"allow comment", "x = " + pat + " # gitleaks:allow", "x = " + githubMark + " # gitleaks:allow"},
		{"branch id", "auth_key = br_" + uuid, "auth_key = br_" + uuid},
		{"session id", `{"session_token": "ses_` + uuid + `"}`, `{"session_token": "ses_` + uuid + `"}`},
		{"context id", "access_key=ctx_1735650000_a1b2c3d4 ", "access_key=ctx_1735650000_a1b2c3d4 "},
		{"example far behind", "DB_PASSWORD=" + row, "DB_PASSWORD=[REDACTED:password-variable]" + row[200:]},
		{"behind an id", "ctx_1735650000_abcdef" + token(5, "glpat-", 20) + " ", "ctx_1735650000_abcdef[REDACTED:gitlab-pat] "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, found, err := s.Text(context.Background(), tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("Text(%q) = %q, want %q", tt.in, got, tt.want)
			}
			if (len(found) > 0) != (got != tt.in) {
				t.Errorf("Text(%q): findings %v, changed %v", tt.in, found, got != tt.in)
			}
		})
	}
}

func TestTextLines(t *testing.T) {
	s := newScrubber(t, Options{})
	_, found, err := s.Text(context.Background(), "a\nb "+github(1)+"\nc\n"+github(2))
	if err != nil {
		t.Fatal(err)
	}
	want := []Finding{{Rule: "github-pat", Line: 2}, {Rule: "github-pat", Line: 4}}
	if d := cmp.Diff(want, found); d != "" {
		t.Errorf("findings differ (-want +got):\n%s", d)
	}
}

func TestJSON(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(3)
	half := len(pat) / 2
	b64 := base64.StdEncoding.EncodeToString
	tests := []struct{ name, in, want, where string }{
		{"value", `{"a":[1.0,"x ` + pat + `"]}`, `{"a":[1.0,"x ` + githubMark + `"]}`, "$.a[1]"},
		{"key", `{"` + pat + `":1}`, `{"` + githubMark + `":1}`, `$["[REDACTED]"]`},
		{"equal keys", `{"` + pat + `":1,"` + github(4) + `":2}`, `{"` + githubMark + `":1,"` + githubMark + `#2":2}`, `$["[REDACTED]"]`},
		{"escapes stay", `{"\u0061":"\u00e9\n` + pat + `\ud83d\ude00\/"}`, `{"\u0061":"\u00e9\n` + githubMark + `\ud83d\ude00\/"}`, "$.a"},
		{"escaped secret", `["\u0067` + pat[1:] + `"]`, `["` + githubMark + `"]`, "$[0]"},
		{"top", `"` + pat + `"`, `"` + githubMark + `"`, "$"},
		{"split", `{"content":[{"type":"text","text":"a ` + pat[:half] + `"},{"text":"` + pat[half:] + ` b","type":"text"}]}`,
			`{"content":[{"type":"text","text":"a ` + githubMark + `"},{"text":"` + githubMark + ` b","type":"text"}]}`, "$.content[0].text"},
		{"with its key", `{"api_key": "` + token(5, "", 32) + `"}`, `{"api_key": "[REDACTED:generic-api-key]"}`, "$.api_key"},
		{"found by two rules", `["TOKEN=` + pat + `"]`, `["TOKEN=` + githubMark + `"]`, "$[0]"},
		{"blob", `{"mimeType":"text/plain","blob":"` + b64([]byte("k "+pat)) + `"}`,
			`{"mimeType":"text/plain","blob":"` + b64([]byte("k "+githubMark)) + `"}`, "$.blob"},
		{"token as a blob", `{"mimeType":"text/plain","blob":"AK` + `IAQYLPMN5HHHFPZAM2"}`,
			`{"mimeType":"text/plain","blob":"[REDACTED:aws-access-token]"}`, "$.blob"},
		{"two blobs", `{"blob":"` + pat + `","blob":"aGVsbG8="}`, `{"blob":"` + githubMark + `","blob":"aGVsbG8="}`, "$.blob"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, found, err := s.JSON(context.Background(), []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("JSON(%s)\n got %s\nwant %s", tt.in, got, tt.want)
			}
			if len(found) == 0 || found[0].Field != tt.where {
				t.Errorf("JSON(%s): findings %v, want the first at %s", tt.in, found, tt.where)
			}
		})
	}
}

func TestJSONCleanIsTheSameSlice(t *testing.T) {
	s := newScrubber(t, Options{})
	in := []byte(` {"a" : [1e400, "\ud800", {"b":"hello"}], "a":null} `)
	got, found, err := s.JSON(context.Background(), in)
	if err != nil || len(found) > 0 || &got[0] != &in[0] || len(got) != len(in) {
		t.Errorf("JSON(%s) = %s, %v, %v, want the same slice", in, got, found, err)
	}
}

func TestJSONWithholdsWhatIsBroken(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, in := range []string{``, `{`, `{"a":"`, `{"a"}`, `[1,]`, `{} x`} {
		if got, _, err := s.JSON(context.Background(), []byte(in)); err == nil || got != nil {
			t.Errorf("JSON(%q) = %q, %v, want an error", in, got, err)
		}
	}
}

func TestEndOfContextAndTime(t *testing.T) {
	s := newScrubber(t, Options{Timeout: time.Nanosecond})
	if got, _, err := s.Text(context.Background(), strings.Repeat("a key ", 1000)); !errors.Is(err, ErrTimeLimit) || got != "" {
		t.Errorf("Text = %q, %v, want %v", got, err, ErrTimeLimit)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s = newScrubber(t, Options{})
	if got, _, err := s.JSON(ctx, []byte(`["a key"]`)); !errors.Is(err, context.Canceled) || got != nil {
		t.Errorf("JSON = %q, %v, want %v", got, err, context.Canceled)
	}
}

func TestUserRules(t *testing.T) {
	manyClasses := ""
	for c := rune(0x100); c < 0x300; c += 2 {
		manyClasses += string(c)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("base.toml", `
[[rules]]
id = "badge"
regex = '''badge-([0-9]{4})'''
keywords = ["badge-"]
`)
	s := newScrubber(t, Options{Rules: write("user.toml", `
[extend]
path = "base.toml"
disabledRules = ["github-pat"]
[[allowlists]]
regexes = ['''^9+$''']
[[allowlists]]
targetRules = ["badge"]
stopwords = ["1234"]
`)})
	in := "badge-4711 badge-9999 badge-1234 " + github(6)
	want := "badge-[REDACTED:badge] badge-9999 badge-1234 " + github(6)
	if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
		t.Errorf("Text(%q) = %q, %v, want %q", in, got, err, want)
	}
	for name, text := range map[string]string{
		"empty match": "[[rules]]\nid='x'\nregex='(?:a|b*)'",
		"classes":     "[[rules]]\nid='x'\nregex='" + manyClasses + "'",
		"syntax":      `[[rules`,
		"expression":  "[[rules]]\nid='x'\nregex='('",
		"no id":       "[[rules]]\nregex='x'",
		"empty":       "[[rules]]\nid='x'",
		"group":       "[[rules]]\nid='x'\nregex='x'\nsecretGroup=1",
		"pair":        "[[rules]]\nid='x'\nregex='x'\napart=true\nbefore=true",
		"required":    "[[rules]]\nid='x'\nregex='x'\n[[rules.required]]\nid='nope'",
		"target":      "[[allowlists]]\ntargetRules=['nope']\nstopwords=['x']",
		"allow":       "[[allowlists]]\ndescription='nothing'",
		"condition":   "[[allowlists]]\ncondition='xor'\nstopwords=['x']",
		"url":         "[extend]\nurl='https://example.com/x.toml'",
		"missing":     "[extend]\npath='missing.toml'",
	} {
		_, err := New(Options{Rules: write("bad.toml", text)})
		if err == nil {
			t.Errorf("New with rules %q (%s) succeeds, want an error", text, name)
		}
		if unbounded := name == "empty match" || name == "classes"; unbounded && !strings.Contains(fmt.Sprint(err), `rule "x"`) {
			t.Errorf("New with rules %q (%s): %v, want the rule's id", text, name, err)
		}
	}
}

// A rule of the user with the id of one of foldgate's changes what it says, and nothing else.
func TestChangedRules(t *testing.T) {
	s := newScrubber(t, Options{})
	var changes, ids []string
	for _, r := range s.rules.active {
		if r.own {
			changes, ids = append(changes, fmt.Sprintf("[[rules]]\nid = %q\n[[rules.allowlists]]\nstopwords = ['nothing has this']\n", r.ID)), append(ids, r.ID)
		}
	}
	path := filepath.Join(t.TempDir(), "rules.toml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Join(changes, ""))
	changed := newScrubber(t, Options{Rules: path})
	texts := largeTexts(2000)
	texts["end of a key"] = token(8, "", 64) + "\n" + token(9, "", 64) + "\n-----END RSA PRIVATE" + " KEY-----"
	texts["cells"] = "DB_PASSWORD | " + token(10, "", 14) + "\nAPI_TOKEN | " + token(11, "", 20) + "\n"
	texts["a value before its name"] = `[{"value": "` + token(12, "", 14) + `", "name": "DB_PASSWORD"}]`
	found := 0
	for name, text := range texts {
		want, findings, err := s.Text(context.Background(), text)
		if err != nil {
			t.Fatal(err)
		}
		found += len(findings)
		if got, _, err := changed.Text(context.Background(), text); err != nil || got != want {
			t.Errorf("%s: %.200q, %v, want %.200q", name, got, err, want)
		}
	}
	if found < 100 || len(ids) < 30 {
		t.Errorf("%d findings, %d rules", found, len(ids))
	}
	write(fmt.Sprintf("[extend]\ndisabledRules = ['%s']\n", strings.Join(ids, "', '")))
	if got, _, err := newScrubber(t, Options{Rules: path}).Text(context.Background(), texts["end of a key"]); err != nil || got != texts["end of a key"] {
		t.Errorf("without foldgate's rules: %q, %v", got, err)
	}
}

// A rule that requires another compares the hits of both, which ends with the time limit.
func TestRequiredEndsInTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.toml")
	if err := os.WriteFile(path, []byte("[[rules]]\nid='a'\nregex='aa[0-9]'\n[[rules.required]]\nid='b'\nwithinColumns=1\n[[rules]]\nid='b'\nregex='bb[0-9]'\nskipReport=true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScrubber(t, Options{Rules: path, Timeout: 200 * time.Millisecond})
	for in, want := range map[string]string{"aa1": "aa1", "aa1\nbb1": "[REDACTED:a]\nbb1"} {
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q) = %q, %v", in, got, err)
		}
	}
	begun := time.Now()
	if _, _, err := s.Text(context.Background(), strings.Repeat("aa1 ", 20_000)+strings.Repeat("bb1 ", 20_000)); err == nil || time.Since(begun) > 5*time.Second {
		t.Errorf("after %s: %v, want an error at the time limit", time.Since(begun), err)
	}
}

// What stands between the pairs of a text stays, also if the match of a rule begins in the name and has the quotation
// mark behind the value.
func TestTextBetweenPairsStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.toml")
	if err := os.WriteFile(path, []byte("[[rules]]\nid='pin'\nregex='door_key\": \"[0-9]{4}-[0-9]{4}\"'"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScrubber(t, Options{Rules: path})
	for _, in := range []string{"name: door_key\nvalue: PIN\nThis line stays.\nname: door_key\nvalue: PIN\n", "id,door_key\n1,PIN\nstays,PIN\n"} {
		want := strings.ReplaceAll(in, "PIN", "[REDACTED:pin]")
		in = strings.ReplaceAll(in, "PIN", "4711-0815")
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

// TestEveryRuleIsSearchable: no default rule is searched for without a time limit.
func TestEveryRuleIsSearchable(t *testing.T) {
	for _, r := range newScrubber(t, Options{}).rules.active {
		if err := r.expr.Searchable(); err != nil {
			t.Errorf("rule %s %v", r.ID, err)
		}
	}
}

func TestJSONStaysValid(t *testing.T) {
	s := newScrubber(t, Options{})
	in := []byte(`{"x":"\"` + github(7) + `\\","` + github(8) + `":{"` + github(9) + `":[]}}`)
	got, _, err := s.JSON(context.Background(), in)
	if err != nil || !json.Valid(got) || strings.Contains(string(got), "gh"+"p_") {
		t.Errorf("JSON(%s) = %s, %v", in, got, err)
	}
}

// TestLastLine: gitleaks excepts keys in a line with a mount, and takes the
// last line, if nothing ends it, for all lines.
func TestLastLine(t *testing.T) {
	s := newScrubber(t, Options{})
	const before = "RUN --mount=type=secret,id=a b\n"
	key := token(61, "", 24)
	for _, text := range []string{before + `api_key = "KEY"`, before + `api_key = "KEY"` + "\n", before + "x\napi_key = KEY"} {
		want := strings.ReplaceAll(text, "KEY", "[REDACTED:generic-api-key]")
		text = strings.ReplaceAll(text, "KEY", key)
		got, found, err := s.Text(context.Background(), text)
		if err != nil || got != want || len(found) != 1 || found[0].Line != strings.Count(text[:strings.Index(text, key)], "\n")+1 {
			t.Errorf("Text(%q) = %q, %v, %v, want %q", text, got, found, err, want)
		}
		doc, found, err := s.JSON(context.Background(), []byte(`{"content":[{"type":"text","text":`+string(rawjson.Quote(text))+`}]}`))
		if err != nil || len(found) != 1 || strings.Contains(string(doc), key) {
			t.Errorf("JSON with %q = %s, %v, %v", text, doc, found, err)
		}
	}
	// In its own line the exception holds for gitleaks' rules.
	text := "x\n--mount=type=secret,api_key=" + key
	if hits := hitsOf(t, s, text); len(hits) > 0 {
		t.Errorf("find(%q) = %v, want nothing", text, hits)
	}
}

// TestOwnIDs: the ids that are not redacted are those of an expression, whatever stands around or in them.
func TestOwnIDs(t *testing.T) {
	want := regexp.MustCompile(`\b(?:(?:br|ses|env)_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ctx_[0-9]{10,14}_[a-z0-9]{6,26})\b`)
	r := rand.New(rand.NewPCG(7, 8))
	ids := []string{"br_0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f", "ses_0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f", "env_0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f", "ctx_1735650000_a1b2c3d4", "ctx_17356500001234_abcdefghijklmnopqrstuvwxyz"}
	around := []string{"", "", "", " ", "_", "a", "Z", "9", "-", ".", "env_", "ctx_1_", "\u00e9"}
	pick := func(all []string) string { return all[r.IntN(len(all))] }
	found := 0
	for range 100_000 {
		id := pick(ids)
		if i := r.IntN(len(id)); r.IntN(3) == 0 {
			id = id[:i] + pick(around) + id[i+r.IntN(2):]
		}
		text := pick(around) + id + pick(around) + pick(ids) + pick(around)
		var got [][]int
		for i := range len(text) {
			if text[i] == '_' {
				if s := ownID(text, i); s.End > 0 {
					got = append(got, []int{s.Start, s.End})
				}
			}
		}
		if all := want.FindAllStringIndex(text, -1); !slices.EqualFunc(got, all, slices.Equal) {
			t.Fatalf("ids in %q are %v, want %v", text, got, all)
		}
		found += len(got)
	}
	if found < 20_000 {
		t.Errorf("%d ids in the texts, want more", found)
	}
}
