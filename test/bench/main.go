//go:build linux

// Command bench measures what foldgate adds to a call, against the server
// itself and against other forwarders, over real connections.
//
//	make bench                       # all of it, some minutes
//	go run ./test/bench -short       # the main cases, under a minute
//	go run ./test/bench -growth      # cost against branches, sessions, upstreams, records
//	go run ./test/bench -soak 1h     # memory, files and state while mixed calls go on
//	go run ./test/bench -only '16 clients, 4 KB' -peers=false
//	go run ./test/bench -peers=false -targets '^foldgate' -against /path/of/another/foldgate
//
// Targets take turns in one run, round by round, in the opposite order in odd
// rounds, because a machine that other work shares gives only ratios that hold:
// a ratio is the median of the rounds' own. Before anything is measured the
// program makes sure that foldgate counts, scrubs and traces, and exits with
// status 2 if it does not. Foldgates with a part switched off are checked when
// they are first measured. Everything listens
// on loopback and ends with the program.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "upstream" {
		if err := runUpstream(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "upstream:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run())
}

// plan holds the size of the comparison.
type plan struct {
	rounds       int
	warm, window time.Duration
	scenarios    []scenario
	peers        bool
	targets      *regexp.Regexp
}

// options holds the flags.
type options struct {
	plan    plan
	growth  bool
	soak    soakPlan
	against string
}

func parseFlags() (options, error) {
	o := options{}
	short := flag.Bool("short", false, "the main cases without the peers from npm, in under a minute")
	flag.BoolVar(&o.growth, "growth", false, "cost per call against branches, sessions, upstreams and records, instead of the comparison")
	only := flag.String("only", "", "run the scenarios whose name fits this regular expression")
	names := flag.String("targets", "", "measure the targets whose name fits this regular expression")
	flag.StringVar(&o.against, "against", "", "measure this foldgate binary too, in turn with the one built from here")
	rounds := flag.Int("rounds", 0, "rounds (default 5, with -short 3)")
	window := flag.Duration("window", 0, "time of one target in one round (default 800ms, with -short 350ms)")
	flag.DurationVar(&o.soak.length, "soak", 0, "load one foldgate for so long with mixed calls instead of the comparison; status 1 if a call fails or memory or open files grow")
	flag.DurationVar(&o.soak.every, "every", time.Minute, "with -soak: time from sample to sample")
	flag.IntVar(&o.soak.rate, "rate", 300, "with -soak: calls a second")
	flag.Float64Var(&o.soak.bound, "bound", 8, "with -soak: MB by which the line fitted to resident memory may rise from the end of the warm-up (a sixth of the time) to the end")
	peers := flag.Bool("peers", true, "measure mcp-proxy and supergateway too; needs make deps")
	flag.Parse()
	filter, err := regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	which, err := regexp.Compile(*names)
	if err != nil {
		return o, fmt.Errorf("-targets: %w", err)
	}
	p := plan{targets: which, rounds: 5, warm: 200 * time.Millisecond, window: 800 * time.Millisecond, peers: *peers && !*short, scenarios: full}
	if *short {
		p.rounds, p.warm, p.window, p.scenarios = 3, 100*time.Millisecond, 350*time.Millisecond, brief
	}
	if *rounds > 0 {
		p.rounds = *rounds
	}
	if *window > 0 {
		p.window = *window
	}
	p.scenarios = slices.DeleteFunc(slices.Clone(p.scenarios), func(sc scenario) bool { return !filter.MatchString(sc.String()) })
	o.plan = p
	return o, nil
}

// run returns the status to exit with.
func run() int {
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "foldgate-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	r := &rig{ctx: ctx, dir: dir, against: o.against}
	defer r.close()
	if err := r.build(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	if status := r.prove(); status != 0 {
		return status
	}
	if err := r.measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func (r *rig) measure(o options) error {
	if o.soak.length > 0 {
		return r.soak(o.soak)
	}
	if err := r.startUp(); err != nil {
		return err
	}
	if o.growth {
		return r.growth()
	}
	return r.compare(o.plan)
}

// prove runs check on a foldgate with the settings that are measured.
func (r *rig) prove() int {
	s, err := r.runFoldgate("proof", r.leanStdio(), rotated)
	if err == nil {
		err = check(s, whole)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: nothing was measured:", err)
		return 2
	}
	fmt.Println("foldgate counts, scrubs and traces: checked on a branch, a planted credential and the journal.")
	return 0
}

// full lists every scenario, brief the scenarios of -short.
var full = []scenario{
	{host: "http", upstream: "stdio", clients: 1, size: 100},
	{host: "http", upstream: "stdio", clients: 16, size: 100},
	{host: "http", upstream: "stdio", clients: 1, size: 4 << 10},
	{host: "http", upstream: "stdio", clients: 16, size: 4 << 10},
	{host: "http", upstream: "stdio", clients: 64, size: 4 << 10},
	{host: "http", upstream: "stdio", clients: 16, size: 64 << 10},
	{host: "http", upstream: "stdio", clients: 1, size: 1 << 20},
	{host: "http", upstream: "stdio", clients: 16, size: 100, modern: true},
	{host: "http", upstream: "stdio", clients: 16, size: 4 << 10, modern: true},
	{host: "http", upstream: "stdio", clients: 16, size: 4 << 10, branches: 1},
	{host: "http", upstream: "stdio", clients: 16, size: 4 << 10, branches: 16},
	{host: "http", upstream: "http", clients: 16, size: 4 << 10},
	{host: "stdio", upstream: "stdio", clients: 1, size: 4 << 10},
	{host: "stdio", upstream: "stdio", clients: 16, size: 4 << 10},
}

var brief = []scenario{full[1], full[2], full[3], full[8]}

// compare measures all targets in all scenarios.
func (r *rig) compare(p plan) error {
	all := slices.DeleteFunc(targets(p.peers, r.against), func(t target) bool { return !p.targets.MatchString(t.name) })
	if !p.peers {
		fmt.Println("mcp-proxy and supergateway are left out; a full run with -peers has them.")
	}
	fmt.Printf("%d rounds of %s a target; ratios are medians of the rounds' own, with the least and the most.\n", p.rounds, p.window)
	running := make([]*server, len(all))
	for _, sc := range p.scenarios {
		results := make([]result, len(all))
		lanes := make([]*lane, len(all))
		for i, t := range all {
			results[i] = result{target: t.name, skipped: t.fits(sc)}
			if results[i].skipped != "" {
				continue
			}
			var err error
			if running[i] == nil {
				running[i], err = t.start(r)
			}
			if err == nil {
				lanes[i], err = openLane(running[i], sc)
			}
			if err != nil {
				if !t.peer {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				results[i].skipped = firstLine(err.Error())
			}
		}
		if err := turns(r.ctx, p, lanes, results); err != nil {
			return err
		}
		table(os.Stdout, sc, slices.DeleteFunc(results, func(r result) bool { return r.skipped == "-" }))
		if err := compareCopy(os.Stdout, sc, results); err != nil {
			return err
		}
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// turns runs the rounds of one scenario.
func turns(ctx context.Context, p plan, lanes []*lane, results []result) error {
	for round := range p.rounds {
		order := make([]int, len(lanes))
		for i := range order {
			order[i] = i
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			if lanes[i] == nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			s, err := lanes[i].window(p.warm, p.window)
			if err != nil {
				return err
			}
			results[i].samples = append(results[i].samples, s)
		}
	}
	return nil
}
