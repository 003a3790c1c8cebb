package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/hosts"
	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/internal/steadyclock"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
)

// Levels of a finding.
const (
	levelOK    = "ok"
	levelWarn  = "warn"
	levelFault = "fault"
)

// finding is one line of doctor.
type finding struct {
	Level  string `json:"level"`
	Topic  string `json:"topic"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// doctor gathers findings about one configuration.
type doctor struct {
	app      *app
	wait     time.Duration
	Findings []finding `json:"findings"`
	Faults   int       `json:"faults"`
	Warnings int       `json:"warnings"`

	cfg  config.Config
	logs []string // files that gateways log to
}

func newDoctor(a *app) *cobra.Command {
	d := &doctor{app: a}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps foldgate and its hosts from working",
		Long: `Look at the hosts of this machine and what they start, the configuration, the
programs and servers behind it, their logins and the cost of their tools, the state
directory and the disk, the log file, the clock, the store of the limits, the other
replicas, and the errors of the last 24 hours. Each line is ok, warn or fault, with its remedy. Exit code 1 means
that there is a fault. It changes nothing; servers are started as by foldgate check.`,
		Example: "  foldgate doctor\n  foldgate doctor --config /etc/foldgate/foldgate.yaml --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.showProgress(cmd, cmd.CommandPath())
			d.examine(cmd.Context())
			a.endProgress()
			if cmd.Context().Err() != nil { // what it did not wait for has not failed
				return errInterrupted
			}
			var err error
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), d)
			} else {
				d.print(cmd.OutOrStdout())
			}
			if d.Faults > 0 {
				err = cmp.Or(err, errSilent)
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&d.wait, "wait", 30*time.Second, "how long to wait for the next upstream")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (d *doctor) add(level, topic, remedy, format string, args ...any) {
	d.take(finding{level, topic, fmt.Sprintf(format, args...), remedy})
}

func (d *doctor) take(findings ...finding) {
	for _, f := range findings {
		switch f.Level {
		case levelFault:
			d.Faults++
		case levelWarn:
			d.Warnings++
		}
	}
	d.Findings = append(d.Findings, findings...)
}

// print writes the findings, in color on a terminal.
func (d *doctor) print(out io.Writer) {
	color := map[string]string{}
	if isTerminal(d.app.raw) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		out, color = d.app.raw, map[string]string{levelOK: "\x1b[32m", levelWarn: "\x1b[33m", levelFault: "\x1b[31m", "": "\x1b[0m"}
	}
	for _, f := range d.Findings {
		render.Printf(out, color[f.Level]+"%-5s"+color[""]+"  %-13s  %s\n", f.Level, f.Topic, f.Text)
		if f.Remedy != "" {
			render.Printf(out, "%22s-> %s\n", "", f.Remedy)
		}
	}
	fmt.Fprintf(out, "\n%s, %s\n", count(d.Faults, "fault"), count(d.Warnings, "warning"))
}

func (d *doctor) examine(ctx context.Context) {
	d.add(levelOK, "version", "", "%s", versionLine())
	if d.app.logFile != "" {
		d.logs = append(d.logs, d.app.logFile)
	}
	usable := d.configuration()
	d.hosts(ctx)
	if usable {
		d.programs(ctx)
		store := d.upstreams(ctx)
		d.definitions()
		d.store(ctx, store)
		d.replicas(ctx)
		d.listen(ctx)
	}
	var newest time.Time
	if d.cfg.Dir != "" { // else the file is unread, and the state directory unknown
		d.state(ctx)
		newest = d.recent(ctx)
	}
	for _, file := range d.logs {
		d.log(file)
	}
	d.clock(ctx, usable, newest)
}

// configuration reads the configuration, and reports whether a gateway could use it.
func (d *doctor) configuration() (usable bool) {
	cfg, err := config.Find(d.app.config)
	d.cfg = cfg
	faults, known := errors.AsType[*config.Error](err)
	switch {
	case known:
		for _, f := range faults.Faults {
			d.add(levelFault, "configuration", "correct it, then run foldgate doctor again: servers are not tried before", "%s: %s", faults.File, f.Error())
		}
		return false
	case err != nil:
		d.add(levelFault, "configuration", "name another with --config", "%v", err)
		return false
	case cfg.File == "":
		d.add(levelWarn, "configuration", "foldgate init writes one; foldgate import HOST makes one of a host's servers; --config names one", "none: foldgate would serve the files below %s", cfg.Dir)
		return true
	}
	served := "serves the host that starts it"
	if cfg.Listen != "" {
		served = "listens on " + cfg.Listen
	}
	d.add(levelOK, "configuration", "", "%s: %s, %s", cfg.File, count(len(cfg.Upstreams), "upstream"), served)
	d.take(warnings(cfg)...)
	return true
}

// warnings returns what a valid configuration may have wrong, for check and doctor.
func warnings(cfg config.Config) (found []finding) {
	add := func(remedy string, faults ...config.Fault) {
		for _, f := range faults {
			found = append(found, finding{levelWarn, "configuration", f.Error(), remedy})
		}
	}
	add("set listen, or remove the key", cfg.WithoutEffect()...)
	add("correct the key, or the principals", cfg.UnmatchedPrincipals()...)
	add("add a token to its tokens, or remove the principal", cfg.Ended(time.Now())...)
	if f, ok := cfg.OnlyRecords(); ok {
		add("remove the key when foldgate trace --reason policy shows only what the policy should refuse", f)
	}
	return found
}

// hosts looks at the files of the known hosts, for the user and for this directory.
func (d *doctor) hosts(ctx context.Context) {
	connected, seen := false, []string{}
	here, _ := os.Getwd()
	projects, err := hosts.Current()
	if err != nil {
		projects = func(string) bool { return false }
	}
	_, secret, err := secrets(ctx)
	if err != nil {
		secret = func(string) bool { return true }
	}
	for _, name := range hosts.Names() {
		h, _ := hosts.Find(name)
		users, _ := h.File("")
		for _, dir := range []string{"", here} {
			file, err := h.File(dir)
			if err != nil || dir != "" && sameFile(file, users) { // in the home directory
				continue
			}
			found, err := h.Inspect(file, &hosts.Importer{Projects: projects, Secret: secret, Dir: dir})
			switch {
			case err != nil:
				d.add(levelFault, "host", "correct the file: "+h.Title+" can't read it either, or ask for its owner's rights", "%s: %v", h.Title, err)
			case found == nil:
			case found.Server == nil:
				seen = append(seen, h.Name)
				d.add(levelOK, "host", "", "%s does not use foldgate: %s", h.Title, file)
			default:
				connected = true
				d.host(ctx, h, file, found, dir != "")
			}
		}
	}
	switch {
	case connected:
	case len(seen) > 0:
		d.add(levelWarn, "host", "foldgate import "+seen[0]+" moves its servers behind foldgate; foldgate connect "+seen[0]+" only adds foldgate", "no host uses foldgate")
	default:
		d.add(levelWarn, "host", "foldgate connect NAME --print prints the entry for any host", "none of the known hosts is here")
	}
}

// host examines one host that has an entry for foldgate.
func (d *doctor) host(ctx context.Context, h hosts.Host, file string, found *hosts.Found, project bool) {
	name := h.Name
	if project {
		name += " --project"
	}
	withConfig := ""
	if d.cfg.File != "" {
		withConfig = " --config " + shellword.Quote(d.cfg.File)
	}
	again := "foldgate connect " + name + withConfig
	s := found.Server
	named := flagValue(s.Command, "--config", "-c", "run")
	absolute := filepath.IsAbs(named)
	if file := flagValue(s.Command, "--log-file"); filepath.IsAbs(file) && !slices.Contains(d.logs, file) {
		d.logs = append(d.logs, file)
	}
	_, missing := os.Stat(named)
	unrunnable := lookPath(s.Command)
	switch {
	case found.Off != "":
		d.add(levelFault, "host", again, "%s can't use the entry in %s: %s", h.Title, file, found.Off)
	case s.URL != "":
		if err := answers(ctx, s.URL); err != nil {
			d.add(levelFault, "host", "foldgate run"+withConfig+" starts the gateway; "+again+" changes the address", "%s calls %s, where no foldgate answers: %v", h.Title, s.URL, err)
			break
		}
		d.add(levelOK, "host", "", "%s calls %s", h.Title, s.URL)
	case unrunnable != nil:
		d.add(levelFault, "host", again, "%s starts %s, which can't be run: %v", h.Title, s.Command[0], unrunnable)
	case named != "" && !absolute:
		d.add(levelFault, "host", again, "%s starts foldgate with %s, which depends on the directory that it starts it in", h.Title, named)
	case named != "" && missing != nil:
		d.add(levelFault, "host", again, "%s starts foldgate with %s, which does not exist", h.Title, named)
	case listens(s.Command, named) != "":
		remedy := again + " lets it call the address of a gateway that you run; or take --listen out of the entry"
		if flagValue(s.Command, "--listen", "-l") == "" {
			remedy = "foldgate connect " + name + " --config " + shellword.Quote(named) + " lets it call the address of a gateway that you run; or take listen out of " + named
		}
		d.add(levelFault, "host", remedy, "%s starts a foldgate that listens on %s, and does not answer the host that starts it", h.Title, listens(s.Command, named))
	case named != "" && d.cfg.File != "" && !sameFile(named, d.cfg.File):
		d.add(levelWarn, "host", "foldgate doctor --config "+shellword.Quote(named)+" examines that one", "%s starts foldgate with another configuration, %s", h.Title, named)
	default:
		d.add(levelOK, "host", "", "%s starts %s", h.Title, strings.Join(s.Command, " "))
	}
	if len(found.Others) > 0 {
		d.add(levelWarn, "host", "foldgate import "+name+" moves them behind foldgate", "%s also starts %s itself: the model can go around foldgate", h.Title, strings.Join(found.Others, ", "))
	}
	for _, broken := range found.Broken {
		d.add(levelWarn, "host", "correct it; foldgate import "+name+" then moves it behind foldgate; or take it out of "+file, "%s has a server that foldgate can't start: %s", h.Title, broken)
	}
	for _, kept := range found.Kept {
		d.add(levelWarn, "host", "write it under upstreams of the configuration by hand, and take it out of "+file, "%s also starts a server that foldgate import can't take: the model can go around foldgate: %s", h.Title, kept)
	}
}

// listens returns the address that a command line of foldgate serves with a configuration file, "" for stdio.
func listens(command []string, file string) string {
	cfg := config.Config{}
	if file != "" {
		cfg, _ = config.Load(file)
	}
	return cmp.Or(flagValue(command, "--listen", "-l"), cfg.Listen)
}

// flagValue returns the value of a flag in a command line of foldgate, the last one, "" for none. names
// are its spellings, or a word that a value follows.
func flagValue(command []string, names ...string) (value string) {
	for i, arg := range command {
		joined, is := strings.CutPrefix(arg, names[0]+"=")
		switch {
		case is:
			value = joined
		case i > 0 && slices.Contains(names, command[i-1]) && !strings.HasPrefix(arg, "-"):
			value = arg
		}
	}
	return value
}

func lookPath(command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	_, err := exec.LookPath(command[0])
	return errors.Unwrap(err)
}

func sameFile(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// answers returns why no foldgate answers at a URL.
func answers(ctx context.Context, at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return errors.New("that is no URL")
	}
	resp, err := request(ctx, http.MethodGet, u.Scheme+"://"+u.Host+"/healthz")
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return errors.New(resp.Status)
	}
	if resp, err = request(ctx, http.MethodOptions, at); err == nil && resp.StatusCode == http.StatusNotFound {
		return errors.New(resp.Status + "; the path of its address is /mcp")
	}
	return err
}

// request makes a request without credentials, and reads no body.
func request(ctx context.Context, method, at string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err == nil {
		_ = resp.Body.Close()
	}
	return resp, err
}

// runtimes are programs that start servers, with the oldest version that servers work with, 0 for any.
var runtimes = map[string]int{"node": 18, "npx": 0, "npm": 0, "uvx": 0, "uv": 0, "python": 3, "python3": 3, "docker": 0, "podman": 0, "deno": 0, "bun": 0, "bunx": 0, "pnpm": 0}

var versionNumber = regexp.MustCompile(`\d+\.\d+[\w.+-]*`)

// programs asks the programs that start upstreams for their versions.
func (d *doctor) programs(ctx context.Context) {
	used := d.usedPrograms()
	var ok []string
	for _, program := range slices.Sorted(maps.Keys(used)) {
		least, known := runtimes[filepath.Base(program)]
		if !known {
			continue
		}
		version, err := programVersion(ctx, program)
		major, _, _ := strings.Cut(version, ".")
		n, _ := strconv.Atoi(major)
		switch {
		case err != nil:
			d.add(levelFault, "program", "install it again, or name another in upstreams."+used[program]+".command", "%s --version fails: %v", program, err)
		case version != "" && n < least:
			d.add(levelWarn, "program", fmt.Sprintf("install version %d or later", least), "%s is version %s; many servers need %d", program, version, least)
		default:
			ok = append(ok, strings.TrimSuffix(program+" "+version, " "))
		}
	}
	if len(ok) > 0 {
		d.add(levelOK, "programs", "", "%s", strings.Join(ok, ", "))
	}
}

// usedPrograms returns the programs that start upstreams, each with an upstream that uses it. It warns of paths that
// depend on the directory in which foldgate is started.
func (d *doctor) usedPrograms() map[string]string {
	used := map[string]string{}
	for _, key := range d.cfg.UpstreamKeys() {
		u := d.cfg.Upstreams[key]
		if len(u.Command) == 0 {
			continue
		}
		program := u.Command[0]
		if filepath.Base(program) != program && !filepath.IsAbs(program) {
			if u.Cwd == "" {
				d.add(levelWarn, "program", "name its absolute path in upstreams."+key+".command, or set cwd there", "%s of %s counts from the directory that foldgate is started in: a host may start it elsewhere", program, key)
			}
			program = filepath.Join(d.cfg.Path(u.Cwd), program) // as the gateway finds it
		}
		used[program] = key
		if filepath.Base(program) == "npx" {
			used["node"] = cmp.Or(used["node"], key)
		}
	}
	return used
}

// programVersion returns the version that a program prints, "" if it prints none.
func programVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second // a process that it started may hold the pipe
	out, err := cmd.CombinedOutput()
	return string(versionNumber.Find(out)), err
}

// manyTokens is a cost of definitions that is worth a warning: a tenth of a context of 200,000 tokens.
const manyTokens = 20_000

// upstreams connects them all, as check does, and returns why that can't take anything from the store of the limits.
func (d *doctor) upstreams(ctx context.Context) (store error) {
	r, err := proxy.Check(ctx, d.cfg, interceptor.Identity{}, d.wait, slog.New(slog.DiscardHandler))
	if err != nil {
		d.add(levelFault, "upstreams", "foldgate check", "%v", err)
		return nil
	}
	var ok []string
	dearest, most, tools := "", 0, len(r.Own)
	for _, u := range r.Upstreams {
		tools += len(u.Tools)
		if u.Lacks {
			d.add(levelOK, "upstream", "", "%s is not checked: %s", u.Name, lacksLogin(d.cfg, u))
			continue
		}
		if u.Err != nil {
			d.add(levelFault, "upstream", upstreamRemedy(d.cfg, u), "%s: %s", u.Name, upstreamFault(u))
			continue
		}
		ok = append(ok, u.Name)
		cost := 0
		for _, t := range u.Tools {
			cost += t.Tokens
		}
		if cost > most {
			dearest, most = u.Name, cost
		}
	}
	if len(ok) > 0 {
		d.add(levelOK, "upstreams", "", "%d of %d answer: %s", len(ok), len(r.Upstreams), strings.Join(ok, ", "))
	}
	d.take(wrongNames(r)...)
	level, remedy := levelOK, ""
	if r.Tokens > manyTokens {
		level, remedy = levelWarn, fmt.Sprintf("tools: {allow: [...]} under upstreams.%s, which costs %d, shows fewer", dearest, most)
	}
	d.add(level, "definitions", remedy, "the definitions of %s cost a host %s (%s)", count(tools, "tool"), count(r.Tokens, "token"), r.Counter)
	return r.Store
}

// wrongNames returns the names that clash and those that no tool has, for check and doctor.
func wrongNames(r proxy.Report) (found []finding) {
	for _, c := range r.Clashes {
		found = append(found, finding{
			levelFault, "names", fmt.Sprintf("%s is offered by %s and by %s, and only the first can be reached", c.Name, c.First, c.Second),
			fmt.Sprintf("give %s a prefix of its own, or hide the tool with upstreams.%[1]s.tools.deny", c.Second),
		})
	}
	for _, f := range slices.Concat(r.Unmatched, r.Idle) {
		found = append(found, finding{levelWarn, "names", f.Error(), "correct the key; foldgate check lists the tools"})
	}
	return found
}

// store asks the store of the limits, of which a fault may be known.
func (d *doctor) store(ctx context.Context, fault error) {
	if len(d.cfg.Budgets.Limits) == 0 {
		return
	}
	where, file := "in the state directory", filepath.Join(d.cfg.StatePath(), "budgets.db")
	if d.cfg.Store.URL != "" {
		where = "in Redis"
	} else if info, err := os.Stat(file); err == nil && ownedByMe(info) {
		if engine.ExamineDatabase(ctx, file) != nil {
			return // databases tells it
		}
		var f *os.File
		if f, fault = os.OpenFile(file, os.O_RDWR, 0); fault == nil {
			fault = f.Close()
		}
	} else { // to open it would make it
		d.add(levelOK, "budget store", "", "%s, %s, not opened", count(len(d.cfg.Budgets.Limits), "limit"), where)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	used, err := proxy.StoredBudgets(ctx, d.cfg, "", slog.New(slog.DiscardHandler))
	if err = cmp.Or(err, fault); err != nil {
		d.add(levelFault, "budget store", storeRemedy(d.cfg), "%s: %v", where, err)
		return
	}
	d.add(levelOK, "budget store", "", "%s, %s in use, %s", count(len(d.cfg.Budgets.Limits), "limit"), count(len(used), "count"), where)
}

// storeRemedy says what to do if the store of the limits can't be used.
func storeRemedy(cfg config.Config) string {
	if len(cfg.Budgets.Limits) == 0 {
		return replicasRemedy
	}
	effect := "refused"
	if cfg.Budgets.OnError == "allow" {
		effect = "allowed, and charged later"
	}
	remedy := "start the store, or correct store.url"
	if cfg.Store.URL == "" {
		remedy = "do as it says"
	}
	return remedy + "; calls are " + effect + " meanwhile (budgets.on_error)"
}

// listen looks whether a gateway has the address of listen, or could have it.
func (d *doctor) listen(ctx context.Context) {
	at, dir := d.cfg.Listen, d.cfg.StatePath()
	if _, port, _ := net.SplitHostPort(at); at == "" || port == "0" {
		return
	}
	if info, err := os.Stat(dir); err == nil && !ownedByMe(info) { // who runs on it is not known
		return
	}
	if found, _ := control.Find(ctx, dir); len(found) > 0 {
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", at)
		if err != nil {
			d.add(levelWarn, "listen", "restart the gateway, unless it was started with --listen", "a gateway runs on %s, and none answers at listen: %v", dir, err)
			return
		}
		_ = c.Close()
		return
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		d.add(levelFault, "listen", "stop it, or choose another port", "another program has %s, and no gateway runs on %s", at, dir)
	case err != nil:
		d.add(levelFault, "listen", "correct listen, or run foldgate as a user who may use the port", "%s can't be used: %v", at, err)
	default:
		_ = l.Close()
	}
}

const replicasRemedy = "start the store, or correct store.url; replicas use what they knew meanwhile"

// replicas tries to reach the replicas that are registered.
func (d *doctor) replicas(ctx context.Context) {
	if !d.cfg.Replicated() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	all, err := proxy.Replicas(ctx, d.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		d.add(levelFault, "replicas", replicasRemedy, "%v", err)
		return
	}
	up, configs := 0, map[string]bool{}
	for _, r := range all {
		switch {
		case r.Err != nil:
			d.add(levelFault, "replicas", "let this machine reach replicas.listen of that one, and give both the same replicas.key", "%s at %s can't be reached: %v", r.Name, r.Address, r.Err)
		case r.State == "up":
			up++
			configs[r.Config] = true
		case r.State == "down":
			d.add(levelWarn, "replicas", "start it again on its state_dir: its branches and results are there", "%s at %s is down for %s", r.Name, r.Address, r.Seen.Round(time.Second))
		}
	}
	if len(configs) > 1 {
		d.add(levelWarn, "replicas", "give all the same file", "%d different configurations are in force", len(configs))
	}
	d.add(levelOK, "replicas", "", "%d of %d are up", up, len(all))
}

// recently is how far back recent reads records.
const recently = 24 * time.Hour

// recent tells of the errors in the trace, and returns the time of the newest record.
func (d *doctor) recent(ctx context.Context) (newest time.Time) {
	dirs := d.journals()
	if len(dirs) == 0 {
		return newest
	}
	const verify = "foldgate trace verify names the first bad line"
	sums := recentSums{calls: map[string]int{}, failed: map[string]int{}, warnings: map[string]int{}}
	for _, dir := range dirs {
		lacks, err := sums.read(ctx, dir)
		switch {
		case err != nil:
			d.add(levelFault, "errors", verify, "the trace can't be read: %v", err)
		case lacks > 0:
			d.add(levelFault, "errors", verify, "the trace in %s lacks the end: %s", dir, count(lacks, "record"))
		}
	}
	calls, failed, last := 0, 0, ""
	for server, n := range sums.calls {
		calls, failed = calls+n, failed+sums.failed[server]
	}
	if sums.last != "" {
		last = "; the last: " + sums.last
	}
	d.add(levelOK, "errors", "", "of %s in 24 hours %d failed, and foldgate refused %d%s", count(calls, "call"), failed, sums.refused, last)
	for _, server := range slices.Sorted(maps.Keys(sums.failed)) {
		if all, n := sums.calls[server], sums.failed[server]; server != "" && n > 2 && 2*n > all {
			d.add(levelWarn, "errors", "foldgate trace --errors --since 24h --server "+server, "of %d calls of %s %d failed", all, server, n)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(sums.warnings)) {
		d.add(levelWarn, "errors", "foldgate trace --kind system/warning --since 24h --format jsonl", "%s %s in the trace", count(sums.warnings[code], "warning"), code)
	}
	return sums.newest
}

// journals returns the trace directories of the instances that have one. It tells of those that are missing.
func (d *doctor) journals() []string {
	all, lost := instances(d.cfg.StatePath()), false
	for _, dir := range all {
		_, err := withJournal([]string{dir})
		if none, ok := errors.AsType[noTraceError](err); ok && none.lost() {
			lost = true
			d.add(levelFault, "errors", "move it back if you can, and restart the gateway", "a gateway runs, and its trace in %s is missing: calls are refused or not recorded", dir)
		}
	}
	dirs, err := withJournal(all)
	if err == nil {
		return dirs
	}
	_, none := errors.AsType[noTraceError](err)
	switch info, wrong := os.Stat(d.cfg.StatePath()); {
	case wrong != nil || !info.IsDir() || none && lost: // told
	case none:
		d.add(levelOK, "errors", "", "%v", err)
	default:
		d.add(levelFault, "errors", "run foldgate and this command as one user, such as with sudo -u", "%v", err)
	}
	return nil
}

// recentSums are the sums of the records of the last 24 hours.
type recentSums struct {
	newest        time.Time      // of all records
	calls, failed map[string]int // by server
	refused       int
	last          string         // error
	warnings      map[string]int // by code
}

// read adds the records of a journal, and returns how many it lacks at its end.
func (s *recentSums) read(ctx context.Context, dir string) (lacks uint64, err error) {
	// The last file is read whole: an older trace has no recent records, but a newest one.
	since := time.Now().Add(-recently)
	head, err := trace.Last(dir)
	if files, _ := trace.Segments(dir); len(files) > 0 {
		if first, err := trace.FirstRecord(filepath.Join(dir, files[len(files)-1])); err == nil && first.Time().Before(since) {
			since = first.Time()
		}
	}
	seq := uint64(0)
	for r, wrong := range query.Recent(ctx, dir, query.Filter{Since: since, Journal: true}) {
		if wrong != nil {
			return 0, cmp.Or(err, wrong)
		}
		seq = r.Seq
		s.add(r)
	}
	return head - min(seq, head), err
}

func (s *recentSums) add(r *trace.Record) {
	if r.Time().After(s.newest) {
		s.newest = r.Time()
	}
	a := r.AuditOrEmpty()
	switch {
	case time.Since(r.Time()) > recently:
	case r.Kind == trace.KindWarning:
		var w struct{ Code string }
		_ = json.Unmarshal(r.Payload, &w)
		s.warnings[cmp.Or(w.Code, "other")]++
	case r.Kind == trace.KindResponse+"tools/call":
		s.calls[a.Server]++
		switch {
		case r.Blocked():
			s.refused++
		case a.IsError:
			s.failed[a.Server]++
			s.last = cmp.Or(failure(r.Payload), s.last)
		}
	}
}

// failure returns the first line of the text of a failed call.
func failure(payload json.RawMessage) string {
	var p struct {
		Error  struct{ Message string }
		Result struct{ Content []struct{ Text string } }
	}
	_ = json.Unmarshal(payload, &p)
	if p.Error.Message == "" && len(p.Result.Content) > 0 {
		return firstLine(p.Result.Content[0].Text)
	}
	return firstLine(p.Error.Message)
}

// maxSkew is how far clocks may differ. Tokens have a leeway of about so much.
const maxSkew = time.Minute

// clock compares the clock with the newest record of the trace and with the first server on the network.
func (d *doctor) clock(ctx context.Context, usable bool, newest time.Time) {
	const remedy = "set the clock, such as with timedatectl set-ntp true: budgets, expiry of tokens and the trace depend on it"
	now := time.Now()
	if ahead := newest.Sub(now); ahead > maxSkew {
		d.add(levelFault, "clock", remedy, "it says %s, and the trace has a record that is %s newer", now.Format(time.RFC3339), ahead.Round(time.Second))
		return
	}
	steady := steadyclock.Open(filepath.Join(d.cfg.StatePath(), steadyclock.File), time.Time{}, slog.New(slog.DiscardHandler))
	if off := steady.Step().Round(time.Second); off.Abs() > maxSkew {
		d.add(levelWarn, "clock", "if that is wrong, "+remedy+"; else there is nothing to do", "it says %s, %s off what foldgate expects by the time that has passed: what ends or is deleted by its age goes by the latter until the clock has run on for a day", now.Format(time.RFC3339), off)
		return
	}
	keys := d.cfg.UpstreamKeys()
	if i := slices.IndexFunc(keys, func(key string) bool { return d.cfg.Upstreams[key] != nil && d.cfg.Upstreams[key].URL != "" }); usable && i >= 0 {
		resp, err := request(ctx, http.MethodHead, d.cfg.Upstreams[keys[i]].URL)
		if err == nil {
			if theirs, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
				if skew := time.Since(theirs).Round(time.Second); skew.Abs() > maxSkew {
					d.add(levelWarn, "clock", remedy, "it is %s ahead of that of %s", skew, keys[i])
					return
				}
				d.add(levelOK, "clock", "", "%s, as that of %s", now.Format(time.RFC3339), keys[i])
				return
			}
		}
	}
	d.add(levelOK, "clock", "", "%s", now.Format(time.RFC3339))
}
