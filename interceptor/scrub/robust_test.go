package scrub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/test/regexsample"
)

// TestConcurrentUse: several at once get what one alone gets.
func TestConcurrentUse(t *testing.T) {
	s, alone := newScrubber(t, Options{}), newScrubber(t, Options{}) // s has made none of its tables yet
	sam := regexsample.New(3)
	trees := defaultTrees(s)
	var texts, want []string
	for i := range 12 {
		text := sam.Text(trees, 2000) + []string{" api_key=é", " api_keyé"}[i%2]
		clean, _, err := alone.Text(context.Background(), text)
		if err != nil {
			t.Fatal(err)
		}
		texts, want = append(texts, text), append(want, clean)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i, text := range texts {
				if got, _, err := s.Text(context.Background(), text); err != nil || got != want[i] {
					t.Errorf("Text(%q) = %q, %v, want %q", text, got, err, want[i])
				}
			}
		})
	}
	wg.Wait()
}

// A large text leaves no more behind than what examining the next needs.
func TestLargeTextIsForgotten(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, text := range []string{
		strings.Repeat("\n", maxKept/4+1) + "aws_key = AKIAQYLPMN5HFIQR7XYA\n",
		strings.Repeat("api_key ", maxKept/4+1),
		"name,passwd" + strings.Repeat(",", maxKept/8) + "\nalice,aRK7Jf2mQ9" + strings.Repeat(",", maxKept/8) + "\n",
	} {
		if _, _, err := s.Text(context.Background(), text); err != nil {
			t.Fatal(err)
		}
		if most := max(cap(s.free[0].lines)*4, cap(s.free[0].repeated)*8); most > maxKept {
			t.Errorf("after %d bytes like %q, %d are kept in one piece, want at most %d", len(text), text[:8], most, maxKept)
		}
	}
}

// What is kept for the next text does not refer to this one.
func TestCellsAreForgotten(t *testing.T) {
	s := newScrubber(t, Options{})
	if _, _, err := s.Text(context.Background(), "base-passwd,main\n"+strings.Repeat("libc6,main\n", 8)); err != nil {
		t.Fatal(err)
	}
	cells := s.free[0].cells
	if cap(cells) == 0 {
		t.Fatal("the text was not taken for a table, so the test shows nothing")
	}
	for _, c := range cells[:cap(cells)] {
		if c.name != "" {
			t.Fatalf("the name of a cell, %q, is kept", c.name)
		}
	}
}

// TestRepeatedStrings: short strings that repeat are examined once while they are clean. A secret among them is
// found each time, also if a clean string stood at the same place of the same memory before.
func TestRepeatedStrings(t *testing.T) {
	s := newScrubber(t, Options{})
	const secrets, times = numRepeated, 3
	build := func(value func(n uint64) string) []byte {
		doc := []byte("{")
		for range times {
			for n := range uint64(secrets) {
				doc = fmt.Appendf(doc, `"a token %d":{"note %d":"%s"},`, n, n, value(n))
			}
		}
		return append(doc, `"end":0}`...)
	}
	for round := range uint64(20) {
		doc := build(func(n uint64) string { return fmt.Sprintf("gh"+"p_%036d", n) })
		if clean, _, err := s.JSON(t.Context(), doc); err != nil || &clean[0] != &doc[0] {
			t.Fatalf("a document without a secret: %.200s, %v", clean, err)
		}
		copy(doc, build(func(n uint64) string { return github(round<<32 | n) }))
		clean, found, err := s.JSON(t.Context(), doc)
		if err != nil || len(found) != secrets*times {
			t.Fatalf("%d findings, want %d; %v", len(found), secrets*times, err)
		}
		if want := build(func(uint64) string { return githubMark }); !bytes.Equal(clean, want) {
			t.Fatalf("got %.200s, want %.200s", clean, want)
		}
	}
}

// TestRepeatedEscapes: the value of a string with an escape is in memory that the next one changes, so it is not kept.
// The second escape is wrong, and has as many bytes as its value.
func TestRepeatedEscapes(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, escape := range []string{`\n`, `\é`} {
		doc := []byte("{")
		for n := range 16 * numRepeated {
			doc = fmt.Appendf(doc, `"k%d":"%s gh`+`p_%036d",`, n, escape, n)
		}
		doc = fmt.Appendf(doc, `"k":"%s %s"}`, escape, github(1))
		if clean, _, err := s.JSON(t.Context(), doc); err != nil || bytes.Contains(clean, []byte(github(1))) {
			t.Errorf("after many strings with %s, %v: a secret stands in %q", escape, err, clean[len(clean)-60:])
		}
	}
}

// TestPanicWithholds: a fault of the engine is an error, and tells no text.
func TestPanicWithholds(t *testing.T) {
	s := newScrubber(t, Options{})
	s.rules = nil // finding a rule now panics
	text := "key = " + token(51, "", 30)
	got, found, err := s.Text(context.Background(), text)
	if err == nil || got != "" || found != nil || strings.Contains(err.Error(), text) {
		t.Errorf("Text = %q, %v, %v, want an error", got, found, err)
	}
	if got, found, err := s.JSON(context.Background(), []byte(`["`+text+`"]`)); err == nil || got != nil || found != nil {
		t.Errorf("JSON = %q, %v, %v, want an error", got, found, err)
	}
}

// TestTimeLimitInsideARule: a single rule on a single text is stopped too.
func TestTimeLimitInsideARule(t *testing.T) {
	s := newScrubber(t, Options{Timeout: time.Millisecond})
	text := strings.Repeat("curl -H x\n", 1<<18)
	start := time.Now()
	_, _, err := s.Text(context.Background(), text)
	if !errors.Is(err, ErrTimeLimit) {
		t.Errorf("Text = %v after %v, want %v", err, time.Since(start), ErrTimeLimit)
	}
}

// A busy machine examines what an idle one does: the limit counts work. The clock bounds it only far behind that.
func TestLoadChangesNothing(t *testing.T) {
	text := dense(2<<20) + largeTexts(1 << 16)["secrets"]
	s := newScrubber(t, Options{})
	x := s.begin(t.Context())
	if _, _, err := x.examine(text); err != nil {
		t.Fatal(err)
	}
	work := time.Duration(x.limit.work)
	var done atomic.Bool
	var spinning sync.WaitGroup
	for range 3 * runtime.GOMAXPROCS(0) {
		spinning.Go(func() {
			for !done.Load() {
			}
		})
	}
	defer spinning.Wait()
	defer done.Store(true)
	for range 2 {
		s.timeout = work * 11 / 10
		start := time.Now()
		if _, found, err := s.Text(t.Context(), text); err != nil || len(found) == 0 {
			t.Errorf("with %v for %v of work: %d findings, %v after %v", s.timeout, work, len(found), err, time.Since(start))
		}
		t.Logf("%v of work took %v", work, time.Since(start))
		s.timeout = work * 9 / 10
		if _, _, err := s.Text(t.Context(), text); !errors.Is(err, ErrTimeLimit) {
			t.Errorf("with %v for %v of work: %v, want %v", s.timeout, work, err, ErrTimeLimit)
		}
	}
}

// What takes too long by the clock fails, however little work it is.
func TestClockEndsAnExamination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for timeout, most := range map[time.Duration]time.Duration{time.Millisecond: longest, time.Minute: farther * time.Minute} {
			l := limit{lifetime: t.Context(), timeout: timeout}
			for _, wait := range []time.Duration{0, most} {
				time.Sleep(wait)
				if err := l.check(); err != nil {
					t.Errorf("limit of %v, after %v without work: %v", timeout, wait, err)
				}
			}
			time.Sleep(time.Nanosecond)
			if err := l.check(); !errors.Is(err, ErrTimeLimit) {
				t.Errorf("limit of %v, after more than %v: %v, want %v", timeout, most, err, ErrTimeLimit)
			}
		}
	})
}

// TestHostileTextIsLinear: texts on which an expression starts everywhere and
// ends nowhere cost twice as much when they are twice as long. Steps of the
// limit are counted, as time on a busy machine says little.
func TestHostileTextIsLinear(t *testing.T) {
	s := newScrubber(t, Options{})
	for name, unit := range map[string]string{
		"curl header": "curl -H ", "curl user": `curl -u "`, "curl lines": "curl x\n", "begin": "-----BEGIN PRIVATE KEY----- ",
		"keys": "key ", "keys joined": "key_", "assignments": "key=a ", "jwt": "eyJhbGciOiJIUzI1NiJ9eyJhbGciOiJIUzI1NiJ9.",
		"op": "ops_eyJ", "slack": "xapp-1-A", "sourcegraph": "sourcegraph 0123456789abcdef0123456789abcdef ",
		"minified": `{"key":"A1b2C3d4E5f6G7h8","x":1},`, "import": "import { key } ", "cookie": "cookie: a=b; ",
		"url": "https://a:", "escapes": `\"`, "percent": "%41", "zero width": "\u200b", "base64": "QUJDREVGR0hJSktMTU5PUA== ",
		"jwt without an end": "eyA", "signs": "token: ", "names": "api_key_auth_",
		"kubernetes": "kind: secret data: ", "carriage returns": "key=A1b2C3d4E5f6\r", "kelvin": "\u212aey=",
		"ctags": "ssh_key_new\tsrc/k.c\t/^ssh_key_new(void)$/;\"\tf\n", "a log": "Invalid token, retrying\n",
		"an index": "a_key\tk.c\t/^a(void)$/\nb_key\tk.c\t/^b(void)$/\n", "cells": "token,x,\n,key y,z\n",
	} {
		steps := func(n int) int {
			x := s.begin(context.Background())
			if _, _, err := x.examine(strings.Repeat(unit, n/len(unit))); err != nil {
				t.Fatal(err)
			}
			work := x.limit.work
			x.end()
			return work
		}
		small, large := steps(1<<15), steps(1<<17)
		if large > 5*small+1_000_000 {
			t.Errorf("%s: %d steps for 32 KB, %d for 128 KB", name, small, large)
		}
	}
}

// The values of names in a row hold the names behind them. Each of these is examined once, not again in the
// value of each name before it.
func TestNamesInValuesCostLittle(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, word := range []string{"auth", "key", "token", "secret", "pwd"} {
		for _, sign := range []string{"=", ":", "::", ":=", "=>", "?", "??=", "||", "->", ">", "<-", "%=", "]=", "*=", ".", "/", "@", "#", "!", "~", "+", "$", "^"} {
			for _, value := range []string{"a1", "1q", "a1b2c3d4e5", "A1b2C3d4E5f6G7h8"} {
				unit := word + sign + value
				x := s.begin(context.Background())
				_, _, err := x.examine(strings.Repeat(unit, 2048/len(unit)))
				if work := x.limit.work; err != nil || work > 400_000 {
					t.Fatalf("2 KB of %s: %d steps, %v", unit, work, err)
				}
				x.end()
			}
		}
	}
}

// Nor is a pair sought in the text of pairs, as in a row of names that each have the next one for a value.
func TestNamesInPairsCostLittle(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, unit := range []string{"pwdvalue:", "keyval:1aaaa", "secretvalue=", "tokentext>", "key: |\n  key", "pwd.value=key", "value:val:a&", "auth|key", "value: key,key: "} {
		x := s.begin(context.Background())
		_, _, err := x.examine(strings.Repeat(unit, 2048/len(unit)))
		if work := x.limit.work; err != nil || work > 320_000 {
			t.Errorf("2 KB of %s: %d steps, %v", unit, work, err)
		}
		x.end()
	}
}

// A value behind a row of names is found, however many they are. No form of a few values is known.
func TestValueBehindNames(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, unit := range []string{"secretvalue=", "tokenval=", "key|", "token1|"} {
		left := 0
		for n := range 80 {
			value := token(uint64(n), "q7", 20)
			in := strings.Repeat(unit, n+1) + value + "\n"
			if got, _, err := s.Text(context.Background(), in); err != nil || strings.Contains(got, value) {
				left++
			}
		}
		if left > 4 {
			t.Errorf("%d of 80 values stay behind a row of %s", left, unit)
		}
	}
}

// The pairs of a text add a bounded amount to what is examined, also if each value is the name of the next
// one.
func TestWorkOfPairs(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, c := range []struct {
		name, text string
		most       int
	}{
		{"blocks of YAML", largeTexts(1 << 17)["block"], 8_000_000},
		{"names in a row", strings.Repeat("token1|", 1<<17/7), 25_000_000},
	} {
		x := s.begin(context.Background())
		_, _, err := x.examine(c.text)
		if work := x.limit.work; err != nil || work > c.most {
			t.Errorf("128 KB of %s: %d steps, want at most %d, %v", c.name, work, c.most, err)
		}
		x.end()
	}
}

// Rows of encodings in encodings are decoded and examined layer by layer. The texts of a layer are examined together,
// and what encodes a known secret is not decoded again.
func TestWorkOfEncodings(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, c := range []struct {
		row  string
		most int
	}{
		{"]/secret=aGVsbG8gd29ybGQh", 18_500_000},
		{"]/secret=c2VjcmV0PWFHVnNiRzhnZDI5eWJHUWg", 34_000_000},
		{"dG9rZW4_MTIzNDU2Nzg5MDEyMzQ1Nng", 9_000_000},
	} {
		x := s.begin(context.Background())
		_, _, err := x.examine(strings.Repeat(c.row, 1<<17/len(c.row)))
		if work := x.limit.work; err != nil || work > c.most {
			t.Errorf("128 KB of %s: %d steps, want at most %d, %v", c.row, work, c.most, err)
		}
		t.Logf("128 KB of %s: %d steps", c.row, x.limit.work)
		x.end()
	}
}

// checked is a context that ends at its n'th check.
type checked struct {
	context.Context
	n int
}

func (c *checked) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

// TestLimitAnywhere: wherever the limit ends a search, that is the error, not a fault of the engine.
func TestLimitAnywhere(t *testing.T) {
	s := newScrubber(t, Options{})
	text := "\u201d" + strings.Repeat("bearer "+token(1, "", 24)+" ?access_token="+token(2, "", 24)+" ", 300) + strings.Repeat("?access_token=abc ", 4000)
	ended := 0
	for n := 1; ; n++ {
		_, _, err := s.Text(&checked{t.Context(), n}, text)
		if err == nil {
			break
		}
		if ended++; !errors.Is(err, context.Canceled) {
			t.Fatalf("ended at check %d: %v", n, err)
		}
	}
	if ended < 20 {
		t.Errorf("%d checks, want more", ended)
	}
}

// As many large texts are examined at once as there are processors; others wait, until their calls are cancelled.
func TestLargeTextsWait(t *testing.T) {
	s := newScrubber(t, Options{})
	text := strings.Repeat("some words ", large/11+1) + github(7)
	for range cap(s.large) {
		s.large <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 2)
	go func() {
		_, _, err := s.Text(ctx, text)
		waited <- err
		_, found, err := s.JSON(t.Context(), []byte(result(text)))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%d findings", len(found))
		}
		waited <- err
	}()
	if _, found, err := s.Text(t.Context(), github(7)); err != nil || len(found) != 1 {
		t.Errorf("a small text: %d findings, %v", len(found), err)
	}
	if len(waited) > 0 {
		t.Error("a large text did not wait")
	}
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	<-s.large
	if err := <-waited; err != nil {
		t.Errorf("after another text: %v", err)
	}
	if len(s.large) != cap(s.large)-1 {
		t.Errorf("%d texts are still counted, want %d", len(s.large), cap(s.large)-1)
	}
}
