package scrub

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// Options says how a [Scrubber] works. The zero value has the default rules and no time limit.
type Options struct {
	// Rules is the path of a gitleaks configuration in TOML. Its rules and allow-lists are added
	// to the default ones. "" means no file.
	Rules string
	// Known are secrets that are known literally, such as the tokens of hosts. Each has two bytes
	// of ASCII or more. They are redacted as foldgate-token.
	Known []string
	// Timeout bounds the work for one text or message: it is about the time that an idle processor takes for as much.
	// The work is counted, so a busy machine examines the same texts as an idle one. The clock bounds an examination to a
	// minute, or to ten times Timeout if that is longer. 0 means no bound.
	Timeout time.Duration
}

// A Scrubber finds and removes secrets. It is safe for concurrent use.
type Scrubber struct {
	rules   *ruleSet
	set     *regexset.Set
	timeout time.Duration
	large   chan struct{}            // has an element for each large text that is being examined
	next    atomic.Pointer[Scrubber] // see Replace

	mu   sync.Mutex
	free []*examination // guarded by mu
}

// A Finding is the place of a secret. It never contains the secret.
type Finding struct {
	// Rule is the id of the rule that found it.
	Rule string `json:"rule"`
	// Line is the line, from 1, in which the match starts: of the text, or of the JSON string.
	Line int `json:"line"`
	// Field is the path of the JSON string, such as $.content[0].text. It is "" for plain text.
	Field string `json:"where,omitempty"`
}

// large is the length of texts and documents that are examined only as many at once as there are processors, because
// an examination can take over 20 times their memory. The time limit does not count the wait.
const large = 1 << 20

// New returns a Scrubber with the rules of opts. It fails if they do not load.
func New(opts Options) (*Scrubber, error) {
	rules, err := loadRules(opts.Rules, opts.Known)
	if err != nil {
		return nil, err
	}
	set, err := regexset.New(rules.patterns(), quotedSigns...)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return &Scrubber{rules: rules, set: set, timeout: opts.Timeout, large: make(chan struct{}, runtime.GOMAXPROCS(0))}, nil
}

// Replace makes s work by the rules of next, which is used for nothing else, from the next call on.
func (s *Scrubber) Replace(next *Scrubber) { s.next.Store(next) }

// Text returns text with every secret replaced by [REDACTED:rule], or text itself if it has none,
// and the findings. After an error (a fault of the engine, [ErrTimeLimit], the end of ctx) clean
// is "", and text must be withheld.
func (s *Scrubber) Text(ctx context.Context, text string) (clean string, found []Finding, err error) {
	err = s.run(ctx, len(text), func(x *examination) (err error) {
		var marks []mark
		marks, found, err = x.examine(text)
		clean = redact(text, marks)
		return err
	})
	if err != nil {
		return "", nil, err
	}
	return clean, found, nil
}

// run calls examine, for a text of size bytes, with an examination for the caller alone. A panic becomes an error
// without the panic's value, which may quote the text.
func (s *Scrubber) run(ctx context.Context, size int, examine func(x *examination) error) (err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("scrub: fault of the engine: %T", e)
		}
	}()
	if next := s.next.Load(); next != nil {
		s = next
	}
	if size >= large {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return fmt.Errorf("scrub: %w", ctx.Err())
		}
	}
	x := s.begin(ctx)
	if err = x.limit.check(); err == nil {
		err = examine(x)
	}
	if err == nil {
		x.end()
	}
	return err
}

// An examination is the state of one call of Text or JSON. Later calls use its memory again.
type examination struct {
	s       *Scrubber
	scratch *regexset.Scratch
	limit   limit

	// Of packed text; see addUnpacked.
	unpacked int
	gzip     gzip.Reader
	flate    io.ReadCloser

	// Of the text that was scanned last; see find.
	text     string
	lines    []int32 // see lineBreaks
	returns  []int32 // see returnsAfter
	cells    []cell  // of it and of what is decoded
	repeated []int   // of a table, by column: cells that are the name
	spans    []span  // of the cells of its header and of a row
	paired   bool    // it is of pairs; see decoded
	numbers  []byteNumber
	excused  bool // a finding in the last line was excepted for the whole text; see lastLine

	// Of a document.
	stack    []frame
	hot      []uint64 // a bit for each byte; see prefilter
	listed   []listed // the strings below arrays; see together
	arrays   []array  // in the order of their starts
	unquoted []byte   // the string that is being examined
	pieces   []byte   // the concatenation that is being examined; see joined

	clean []shortText // of this document and earlier ones: strings without a secret, by hash; see scan
}

func (s *Scrubber) begin(ctx context.Context) *examination {
	s.mu.Lock()
	defer s.mu.Unlock()
	var x *examination
	if n := len(s.free); n > 0 {
		x, s.free = s.free[n-1], s.free[:n-1]
	} else {
		x = &examination{s: s, scratch: s.set.NewScratch()}
	}
	x.limit, x.unpacked, x.paired = limit{lifetime: ctx, timeout: s.timeout}, 0, false
	return x
}

// end keeps the memory of x for later calls. An error or a panic leaves x in an unknown state.
func (x *examination) end() {
	x.scratch.Reset()
	clear(x.cells)
	x.text, x.limit = "", limit{}
	x.lines, x.stack, x.hot, x.cells = kept(x.lines), kept(x.stack), kept(x.hot), kept(x.cells)
	x.unquoted, x.pieces, x.listed, x.arrays = kept(x.unquoted), kept(x.pieces), kept(x.listed), kept(x.arrays)
	x.repeated, x.spans, x.numbers, x.returns = kept(x.repeated), kept(x.spans), kept(x.numbers), kept(x.returns)
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < runtime.GOMAXPROCS(0) {
		s.free = append(s.free, x)
	}
}

// maxKept is the number of bytes of each buffer that later calls use again.
const maxKept = 2 << 20

// kept returns b, or nil if it is too large to be kept.
func kept[T any](b []T) []T {
	if cap(b)*int(unsafe.Sizeof(*new(T))) > maxKept {
		return nil
	}
	return b
}

// ErrTimeLimit is the error for a text that takes more than Options.Timeout.
var ErrTimeLimit = errors.New("scrub: over its time limit")

// A limit ends an examination that takes too much work or is canceled. Work is counted in steps, of which each takes
// about a nanosecond. Unlike the time it does not depend on what else the machine does.
type limit struct {
	lifetime context.Context // of the call
	timeout  time.Duration   // 0 for none
	deadline time.Time       // set by the first check
	work     int             // steps
	next     int             // the work from which on it is checked again
}

const (
	// betweenChecks is the work between two checks, in steps.
	betweenChecks = 1 << 16
	// An examination may take so long by the clock, or so many times its timeout if that is longer.
	longest, farther = time.Minute, 10
)

// Work in steps, as measured on texts that consist of one thing.
const (
	perText   = 1500
	perByte   = 1   // of a text that is scanned
	perMatch  = 700 // of a rule
	perList   = 100 // of exceptions
	perCell   = 600
	perRun    = 150
	perDigit  = 8  // of a run
	perToken  = 40 // of JSON
	perEscape = 30
	perMark   = 150

	perFinding = 1000
)

// Spend counts steps that are about to be done, or have been done just now. It returns an error if the limit is reached.
func (l *limit) Spend(steps int) error {
	if l.work += steps; l.work < l.next {
		return nil
	}
	return l.check()
}

// check returns an error if the call is canceled or too much work is done. The time starts with the first check.
func (l *limit) check() error {
	if l.next = l.work + betweenChecks; l.timeout > 0 {
		l.next = min(l.next, int(l.timeout)+1)
	}
	if err := l.lifetime.Err(); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	if l.timeout <= 0 {
		return nil
	}
	now := time.Now()
	if l.deadline.IsZero() {
		l.deadline = now.Add(max(longest, farther*min(l.timeout, math.MaxInt64/farther)))
	}
	if time.Duration(l.work) > l.timeout || now.After(l.deadline) {
		return fmt.Errorf("%w of %v: raise scrub.timeout_ms or ask for less at once", ErrTimeLimit, l.timeout)
	}
	return nil
}
