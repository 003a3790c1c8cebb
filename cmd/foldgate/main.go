// Command foldgate is an MCP gateway: one server for an agent host, with any number of upstream
// servers behind it. See README.md, or foldgate --help.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/config"
)

// Exit codes.
const (
	exitFailed = 1 // the command failed
	exitUsage  = 2 // the command line or the configuration is wrong
)

func main() {
	extract.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// usageError marks an error of the command line or the configuration: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errSilent is a failure that is already reported.
var errSilent = errors.New("")

// errInterrupted is the failure of a command that a signal has ended. What it found until then can be wrong.
var errInterrupted = errors.New("interrupted")

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{raw: out, rawErr: errOut}
	a.out = &printer{w: out, app: a}
	errOut = render.Plain(errOut)
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(render.Plain(a.out))
	root.SetErr(errOut)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	checkArgs(root)
	cmd, err := root.ExecuteContextC(ctx)
	a.endProgress()
	serves := cmd.Name() == "run" || cmd.Name() == "console"
	if lost := a.out.err; lost != nil && !serves && (err == nil || errors.Is(err, errSilent)) { // what is reported was not read
		err = lost
	}
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = errInterrupted
	}
	_, usage := errors.AsType[usageError](err)
	fault, faulty := errors.AsType[*config.Error](err)
	if faulty && fault.File == os.Getenv("FOLDGATE_CONFIG") && !root.PersistentFlags().Changed("config") {
		err = fmt.Errorf("FOLDGATE_CONFIG: %w", err)
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprintf(errOut, "foldgate: %v\n", err)
	}
	_, flag := errors.AsType[*query.UsageError](err)
	if usage || faulty || flag {
		return exitUsage
	}
	return exitFailed
}

// printer is standard output. It ends the progress line before it prints. It remembers that something could not be
// printed, such as on a full disk: what a command prints is its result, so the command has failed then.
type printer struct {
	w   io.Writer
	app *app
	err error
}

// Write implements [io.Writer].
func (p *printer) Write(b []byte) (n int, err error) {
	p.app.endProgress()
	if n, err = p.w.Write(b); err != nil {
		p.err = cmp.Or(p.err, err)
	}
	return n, err
}

// app holds the flags of all subcommands.
type app struct {
	// The streams as they are. What commands write to cobra's streams is safe for a terminal.
	raw, rawErr  io.Writer
	out          *printer // raw, for text that is not to be made safe
	stopProgress func()   // nil if there is no progress line

	config   string
	logFile  string
	logJSON  bool
	stateDir string // see withStateDir
	verbose  bool
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "foldgate",
		Short: "An MCP gateway that folds, budgets, scrubs and records",
		Long: `foldgate stands between an agent host and its MCP servers. The host configures
foldgate as its single server; behind it stand any number of upstream servers.

It lets the agent fold subtasks into branches with a token budget, takes secrets
out of everything that flows back to the model, and records every message in a
tamper-evident trace. What it has no reason to change passes byte for byte.

To try it, without any configuration, on the files below this directory:
  foldgate run --listen 127.0.0.1:8787
Then give it a configuration (config.example.yaml shows every key), and check it:
  foldgate init
  foldgate check --config foldgate.yaml`,
		Example:      "  foldgate init\n  foldgate import claude-code\n  foldgate doctor",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: checkFlags,
	}
	root.PersistentFlags().StringVarP(&a.config, "config", "c", os.Getenv("FOLDGATE_CONFIG"), "configuration file; without it FOLDGATE_CONFIG, ./foldgate.yaml, foldgate/foldgate.yaml in the user's configuration directory, or built-in defaults")
	root.PersistentFlags().StringVar(&a.logFile, "log-file", "", "write the log to this file instead of standard error")
	root.PersistentFlags().BoolVar(&a.logJSON, "log-json", false, "write the log as lines of JSON")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "log more")
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRun(a), newCheck(a), newTrace(a), newStats(a), newPolicy(a), newLogin(a), newLogout(a), newBranches(a), newBudgets(a), newReload(a), newPins(a), newConsole(a), newCount(a), newScrub(a), newConnect(a), newDisconnect(a), newImport(a), newInit(a), newDoctor(a), newVersion())
	return root
}

// meantFlags has the flags that people mean by names of other programs and other commands.
var meantFlags = map[string]string{
	"port": "listen 127.0.0.1:8787", "addr": "listen 127.0.0.1:8787", "address": "listen 127.0.0.1:8787", "http": "listen 127.0.0.1:8787",
	"reverse": "newest", "tail": "newest", "last": "newest", "latest": "newest",
	"principal": "subject", "team": "subject", "tool": "subject", "server": "subject", "session": "subject",
	"state-dir": "dir",       // as commands on running gateways say
	"dir":       "state-dir", // as commands on the trace say
}

// flagError turns an error of a flag into a usage error that names the help. For an unknown flag it names the one
// that is probably meant.
func flagError(cmd *cobra.Command, err error) error {
	guess := ""
	if name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --"); unknown {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		guess = didYouMean(name, names, "--")
		meant := meantFlags[name]
		if flag, _, _ := strings.Cut(meant, " "); slices.Contains(names, flag) {
			guess = "; did you mean --" + meant + "?"
		}
	}
	if wrong, invalid := errors.AsType[*pflag.InvalidValueError](err); invalid && wrong.GetFlag().Value.Type() == "int" {
		why := "is not a whole number"
		if _, cause := strconv.ParseInt(wrong.GetValue(), 0, 0); errors.Is(cause, strconv.ErrRange) {
			why = "is out of range"
		}
		err = fmt.Errorf("--%s: %.80q %s", wrong.GetFlag().Name, wrong.GetValue(), why)
	}
	return usagef("%w%s\nRun '%s --help' for the flags there are", err, guess, cmd.CommandPath())
}

// checkArgs turns wrong arguments of cmd and its subcommands into usage errors that name the help. A command that
// does not say what it takes takes none.
func checkArgs(cmd *cobra.Command) {
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	switch {
	case cmd.Name() == "help" && cmd.HasParent():
		cmd.Args = checkHelpTopic
	case !cmd.Runnable(): // cobra checks no arguments of a command that only has subcommands
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return argumentError(cmd, check, args, err)
		}
		return nil
	}
	for _, c := range cmd.Commands() {
		checkArgs(c)
	}
}

// argumentError returns the usage error for arguments that check refused with err.
func argumentError(cmd *cobra.Command, check cobra.PositionalArgs, args []string, err error) error {
	guess := ""
	switch {
	case len(args) == 0:
		err = missingArgument(cmd)
	case cmd.HasParent() && slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(args[0])) && check(cmd, args[:1]) != nil:
		err = fmt.Errorf("%s takes no configuration as an argument: %[1]s --config %s", cmd.CommandPath(), args[0])
	case !cmd.HasSubCommands() && cmd.Name() != "help": // they check only how many there are
		n := len(args) - 1
		for n > 0 && check(cmd, args[:n]) != nil {
			n--
		}
		err = fmt.Errorf("%q is one argument too many: %s", args[n], cmd.UseLine())
	}
	if len(args) > 0 && cmd.HasSubCommands() {
		guess = didYouMean(args[0], subcommands(cmd), "")
		if _, err := os.Stat(args[0]); err == nil && !cmd.HasParent() {
			guess = fmt.Sprintf("; to run a gateway with that file: foldgate run %s", shellword.Quote(args[0]))
		}
	}
	return usagef("%w%s\nRun '%s --help' for what it takes", err, guess, cmd.CommandPath())
}

// checkFlags refuses a flag without a value, such as one from a shell variable that is not set: an empty filter would
// select everything, and an empty --config another configuration. It refuses a time to wait that is not positive.
func checkFlags(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		text := f.Value.String()
		empty := text == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			all := list.GetSlice()
			empty = len(all) == 0 || slices.Contains(all, "")
		}
		wait, noTime := cmd.Flags().GetDuration(f.Name)
		switch {
		case err != nil:
		case empty:
			err = query.Usagef(f.Name, "is empty: give it a value, or leave it out")
		case noTime == nil && wait <= 0:
			err = usagef("--%s: %s is no time to wait; use one such as 30s", f.Name, text)
		}
	})
	return err
}

// missingArgument is the error of a command without its first argument, such as HOST of "connect HOST...".
func missingArgument(cmd *cobra.Command) error {
	_, usage, _ := strings.Cut(cmd.Use, " ")
	name, _, _ := strings.Cut(usage, " ")
	name = strings.ToLower(strings.TrimRight(name, "."))
	values := strings.Join(cmd.ValidArgs, ", ")
	if values == "" {
		values = cmd.CommandPath() + " " + usage
	}
	return fmt.Errorf("name the %s: %s", name, values)
}

// checkHelpTopic checks the arguments of help, which name a command.
func checkHelpTopic(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("unknown command %q for %q%s", rest[0], found.CommandPath(), didYouMean(rest[0], subcommands(found), ""))
	}
	return err
}

func subcommands(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

// count returns "1 thing" or "n things".
func count[N int | int64 | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// didYouMean returns the end of an error about a mistyped word, "" if none of names is like it.
func didYouMean(word string, names []string, before string) string {
	if near := config.Closest(word, names); near != "" {
		return "; did you mean " + before + near + "?"
	}
	return ""
}

// takeConfig makes the argument of a command, if there is one, the configuration file.
func (a *app) takeConfig(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Changed("config") {
		return usagef("the configuration is named twice: %s, and by --config; leave one out", args[0])
	}
	a.config = args[0]
	return nil
}

// logger returns the log and a function that closes it.
func (a *app) logger(errOut io.Writer) (*slog.Logger, func(), error) {
	level := slog.LevelInfo
	if a.verbose {
		level = slog.LevelDebug
	}
	w, done := errOut, func() {}
	if a.logFile != "" {
		f, err := os.OpenFile(a.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, usagef("--log-file: %w; make the directory, or name another file", err)
		}
		w, done = f, func() { _ = f.Close() }
	}
	options := &slog.HandlerOptions{Level: level}
	if a.logJSON {
		return slog.New(slog.NewJSONHandler(w, options)), done, nil
	}
	return slog.New(slog.NewTextHandler(w, options)), done, nil
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  foldgate version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("foldgate %s %s/%s %s", version.String(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
