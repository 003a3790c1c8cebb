// Package gosdk is foldgate inside an MCP server that is written with the go-sdk: large results are
// folded, calls metered, secrets scrubbed and a trace written, without another process.
//
// The chain, the tools, the budgets and the records are those of the gateway. docs/embedding.md shows
// how to mount it.
package gosdk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/tools"
)

// Features are what foldgate does. The zero value is all of them.
type Features = engine.Features

// The features. Each works without the others.
const (
	Scrub = engine.Scrub // removes secrets; alone it needs no state directory
	Meter = engine.Meter // branches with budgets, and limits
	Fold  = engine.Fold  // replaces large results with previews
	Trace = engine.Trace // records calls
)

// A jq program of branch_read or branch_run runs in a process of its own: the server's program, started
// again under another name, which ends here, before main.
func init() { extract.Child() }

// Options configure a [Foldgate]. The zero value is all features with the defaults of the gateway.
type Options struct {
	// Config has the keys of the gateway's configuration, such as from [config.Load]; nil means
	// [config.Default]. What belongs to the gateway's own server, and its upstreams, is not used.
	// Workflows and a policy are refused.
	Config   *config.Config
	Features Features
	// Server names the server in records, limits and metrics; "" means "server".
	Server string
	// Identity returns the client of a request. If it is nil, the principal is the user of the
	// request's token, or "local" if there is none.
	Identity func(mcp.Request) interceptor.Identity
	Log      *slog.Logger             // nil means none
	Traces   oteltrace.TracerProvider // nil for no spans
	Meters   metric.MeterProvider     // nil for no metrics
}

// Foldgate is foldgate for one server, or for several that share its state, such as one for each
// session. All methods are safe for concurrent use.
type Foldgate struct {
	opts   Options
	cfg    config.Config
	engine *engine.Engine
	limits *interceptor.Limits // nil for none
	rules  *catalog.Rules
	tools  []mcp.Tool // foldgate's own that the features in use need
	end    context.CancelFunc
	alone  *session // of requests without a session
	close  func() error

	mu       sync.Mutex
	sessions map[*mcp.ServerSession]*session // that are open
}

// New opens the state and loads the rules. Mount the result on a server with [Foldgate.Receiving],
// [Foldgate.Sending] and [Foldgate.AddTools], and call [Foldgate.Close] at the end.
func New(o Options) (*Foldgate, error) {
	o.Server, o.Log = cmp.Or(o.Server, "server"), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	cfg := config.Default()
	if o.Config != nil {
		cfg = *o.Config
	}
	for what, refused := range map[string]bool{"workflows": len(cfg.Workflows) > 0, "policy.rules": len(cfg.Policy.Rules) > 0, "policy.default": cfg.Policy.Default == "deny", "tools.mode": cfg.Tools.Mode != config.ModeList, "llm": cfg.LLM.Runs()} {
		if refused {
			return nil, fmt.Errorf("%s: a gateway can enforce it, and this middleware can't: run foldgate in front of the server, or leave it out", what)
		}
	}
	cfg.Listen, cfg.TLS, cfg.Auth, cfg.PublicURL, cfg.AllowedHosts, cfg.AllowedOrigins = "", config.TLS{}, config.Default().Auth, "", nil, nil
	noPrefix := ""
	cfg.Upstreams = map[string]*config.Upstream{o.Server: {Command: []string{"go-sdk"}, Prefix: &noPrefix}} // never started
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, config.NewError("configuration", faults...)
	}
	f := &Foldgate{opts: o, cfg: cfg, rules: catalog.NewRules(cfg, nil), sessions: map[*mcp.ServerSession]*session{}}
	for _, definition := range tools.Definitions(cfg.Folding, false) {
		var t mcp.Tool
		if err := json.Unmarshal(definition, &t); err != nil {
			return nil, fmt.Errorf("foldgate's own tools can't be read: %w", err)
		}
		if f.owns(t.Name) {
			f.tools = append(f.tools, t)
		}
	}
	lifetime, end := context.WithCancel(context.Background())
	f.end, f.alone = end, &session{lifetime: lifetime}
	policy := engine.FoldPolicy(&f.cfg)
	var err error
	f.engine, err = engine.Open(lifetime, engine.Options{
		Start: cfg, Config: func() *config.Config { return &f.cfg }, Limits: func() *interceptor.Limits { return f.limits },
		Folding: func() *interceptor.FoldPolicy { return &policy }, Features: o.Features, Log: o.Log, Traces: o.Traces, Meters: o.Meters,
	})
	if err != nil {
		end()
		return nil, err
	}
	if f.has(Meter) {
		f.limits, err = f.engine.NewLimits(cfg.Budgets)
	}
	if err != nil {
		err = errors.Join(err, f.engine.Abandon(lifetime))
		end()
		return nil, err
	}
	f.engine.Started()
	f.close = sync.OnceValue(f.closeState)
	go f.engine.Counter.Count("warm") // loading the vocabulary takes a while: the first call should not wait for it
	return f, nil
}

// has reports whether any of these features is in use.
func (f *Foldgate) has(features Features) bool { return f.opts.Features.Has(features) }

// Receiving returns the middleware for what the server receives. Middleware that is added to the
// server later stands outside of it, and sees results folded and without secrets; what was added
// before stands inside, and sees them as the tools return them.
func (f *Foldgate) Receiving() mcp.Middleware {
	return f.receive
}

// Sending returns the middleware for what the server sends of its own accord: notifications, and
// requests such as sampling.
func (f *Foldgate) Sending() mcp.Middleware {
	return f.send
}

// AddTools adds foldgate's own tools to a server: those that the features in use need. They replace tools
// of the same names. With one that is added after them, before the first request, all requests fail.
func (f *Foldgate) AddTools(s *mcp.Server) {
	for _, t := range f.tools {
		s.AddTool(&t, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, errNotMounted })
	}
}

// owns reports whether a tool is one that AddTools adds.
func (f *Foldgate) owns(name string) bool {
	switch name {
	case "branch_read":
		return f.has(Fold)
	case "branch_run":
		return f.has(Fold) && f.has(Meter)
	}
	return f.has(Meter) && tools.Has(name)
}

var errNotMounted = errors.New("foldgate's tools were added to a server without its middleware: call server.AddReceivingMiddleware(fg.Receiving())")

// mounted returns an error if a part of foldgate is missing on the server of a request: what it does
// not see would be neither scrubbed, charged nor recorded.
func (r *request) mounted() error {
	if r.f.has(Scrub | Meter | Trace) {
		seen := false
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), probeKey{}, &seen))
		cancel()                                                        // without foldgate nothing is sent
		_ = r.ss.NotifyProgress(ctx, &mcp.ProgressNotificationParams{}) // fails
		if !seen {
			return errors.New("foldgate would not see what the server sends: call server.AddSendingMiddleware(fg.Sending()) before it serves")
		}
	}
	for _, own := range r.f.tools {
		switch t, err := r.tool(own.Name); {
		case err != nil:
			return err
		case t == nil:
			return errors.New("previews and budgets need foldgate's tools: call fg.AddTools(server) before it serves")
		case t.Description != own.Description:
			return fmt.Errorf("the server has a tool %s of its own, which is a name of foldgate's: give it another name", own.Name)
		}
	}
	return nil
}

// probeKey is the key of a *bool that tells whether foldgate sees what a server sends.
type probeKey struct{}

const closeWait = 10 * time.Second // for the branches to end

// Close ends the branches and closes the state. Close the servers first: calls fail after it. A second
// Close returns what the first returned.
func (f *Foldgate) Close() error { return f.close() }

func (f *Foldgate) closeState() error {
	f.end()
	if f.engine.Tools != nil {
		f.engine.Tools.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	return f.engine.Close(ctx)
}

// session is a client's connection.
type session struct {
	id       string          // "" for requests that stand alone
	lifetime context.Context // ends with it
	identity interceptor.Identity
	from     string // in records
}

// sessionEnded is the cause of the end of branches, for their digest.
const sessionEnded = "the connection ended"

// endSession ends the branches of a session once its connection has ended.
func (f *Foldgate) endSession(ss *mcp.ServerSession, s *session, end context.CancelFunc) {
	_ = ss.Wait() // how it ended does not matter
	end()
	f.mu.Lock()
	delete(f.sessions, ss)
	f.mu.Unlock()
	if f.engine.Branches == nil || f.alone.lifetime.Err() != nil { // Close ends them
		return
	}
	if err := f.engine.Branches.EndSession(context.WithoutCancel(s.lifetime), folding.Caller{Principal: s.identity.Principal, Session: s.id}, sessionEnded); err != nil {
		f.engine.Log.Error("branches of an ended session", "session", s.id, "err", err)
	}
}
