package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/publicip"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/pins"
)

//go:embed static templates
var files embed.FS

// Options configure a Console. Dirs, Log, Shown and Count are required.
type Options struct {
	Dirs []string // the journals
	Log  *slog.Logger
	// State is the state directory, for the gateways that use it and the definitions of servers; "" is
	// none.
	State string
	// Budgets returns what the limits have left, for when no gateway runs; nil: there are no limits.
	Budgets func(context.Context) ([]control.Budget, error)
	// RecordRead writes to the trace that by reads a part of it, for when no gateway runs; nil: the
	// journals are not to be written to.
	RecordRead func(by, part, name string) error
	// Shown returns the name under which hosts see a tool of a server. Limits for tools have such names.
	Shown func(server, tool string) string
	// Count returns the tokens of a text.
	Count func(text string) int
	// Login returns the account of a token, for a console that several people use. Its error is shown. If Login
	// is nil, the one-time link lets its holder in as User, who may change something if Operates is set.
	Login    func(ctx context.Context, token string) (Account, error)
	User     string
	Operates bool
	// Hosts are the names, beside the loopback ones, under which browsers may reach the console.
	Hosts []string
}

// Account is somebody who may look.
type Account struct {
	Principal string
	Operator  bool      // may also change something
	Expires   time.Time // zero for never
}

// Console is the handler of all pages. It is safe for concurrent use.
type Console struct {
	o         Options
	trace     query.Set
	pages     map[string]*template.Template
	pins      *pins.Store // nil without a state directory
	mux       http.Handler
	verify    verify
	exporting sync.Mutex
	reading   sync.Mutex // one RecordRead at a time opens the journal

	link string // the secret of the one-time link

	mu       sync.Mutex
	sessions map[string]*session
	linked   bool        // the link was used
	failures []time.Time // of the last logins
	costs    map[string]int
	changed  chan struct{} // closed with the next change
	ready    bool          // the indexes are complete
	building string
	failed   error
}

// New returns a console. The caller closes it.
func New(ctx context.Context, o Options) (*Console, error) {
	set, err := query.OpenAll(ctx, o.Dirs)
	if err != nil {
		return nil, err
	}
	c := &Console{o: o, trace: set, pages: map[string]*template.Template{}, link: rand.Text(), sessions: map[string]*session{}, costs: map[string]int{}, changed: make(chan struct{})}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html"))
	names, _ := fs.Glob(files, "templates/*.html") // no malformed pattern
	for _, name := range names {
		page := template.Must(layout.Clone()) // the templates are part of the program
		c.pages[strings.TrimSuffix(filepath.Base(name), ".html")] = template.Must(page.ParseFS(files, name))
	}
	if o.State != "" {
		c.pins = pins.Open(o.State, nil)
	}
	c.mux = c.routes()
	return c, nil
}

// Link returns the path of the one-time link.
func (c *Console) Link() string { return "/enter/" + c.link }

// Close ends the verification that runs, and closes the indexes. Watch must have ended. Requests that still run fail.
func (c *Console) Close() error {
	c.verify.stop()
	return c.trace.Close()
}

// watchInterval is how often Watch looks for new records.
const watchInterval = time.Second

// Watch extends the indexes to the ends of the journals, again and again, until ctx ends.
func (c *Console) Watch(ctx context.Context) {
	var records int64
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		report := trace.WithProgress(ctx, func(done, all int64) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.building = fmt.Sprintf("%d %%", 100*done/max(all, 1))
		})
		err := c.trace.Refresh(report)
		now, _, _, countErr := c.trace.Extent(ctx)
		if err = errors.Join(err, countErr); err != nil && ctx.Err() == nil {
			c.o.Log.Error("the trace can't be read", "err", err)
		}
		c.mu.Lock()
		c.failed, c.ready = err, err == nil
		c.mu.Unlock()
		if now != records {
			records = now
			c.change()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// change tells open pages that there is something new.
func (c *Console) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the directory is part of the program
	}
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	mux.HandleFunc("GET /enter/{link}", c.enter)
	mux.HandleFunc("POST /enter/{link}", c.admit)
	mux.HandleFunc("GET /login", c.login)
	mux.HandleFunc("POST /login", c.takeLogin)
	// page serves a page whose address may have these names.
	page := func(pattern string, h func(*request) error, names ...string) { mux.Handle(pattern, c.page(h, names)) }
	page("GET /", c.noPage)
	page("GET /{$}", c.known(c.overview), "span", "since", "until", "server")
	page("GET /calls", c.calls, append(query.AddressNames(), "sort", "after", "size")...)
	page("GET /records/{id}", c.record)
	page("GET /branches", c.known(c.branches), "principal", "open", "sort", "page")
	page("GET /branch", c.branch, "path", "after")
	page("GET /budgets", c.budgets, "limit", "subject")
	page("GET /people", c.known(c.people), "span", "since", "until", "by", "principal", "team")
	page("GET /tools", c.known(c.tools), "span", "since", "until", "server")
	page("GET /definition", c.definition, "server", "kind", "name", "sha256")
	page("GET /integrity", c.integrity)
	page("POST /integrity", c.startVerify)
	page("GET /export", c.export, append(query.AddressNames(), "of")...)
	page("POST /branches/end", c.operate(c.endBranch))
	page("POST /budgets/reset", c.operate(c.resetBudget))
	page("POST /definition/approve", c.operate(c.approve))
	page("POST /logout", c.logout)
	page("GET /events", c.events)
	return c.guard(mux)
}

// policy lets a page use foldgate's own files only.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard refuses requests for other names, which a foreign page could make by DNS, and changes that
// another site asks for. It sets the headers of all answers.
func (c *Console) guard(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if strings.HasPrefix(r.URL.Path, "/static/") {
			h.Set("Cache-Control", "max-age=3600")
		}
		if !c.hostAllowed(r.Host) {
			http.Error(w, "This name is not served here. Open the address that foldgate console printed.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (c *Console) hostAllowed(host string) bool {
	host = publicip.HostName(host)
	return publicip.Loopback(host) || slices.ContainsFunc(c.o.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// request is a request of somebody who is let in, and the answer.
type request struct {
	*http.Request
	w       http.ResponseWriter
	session *session
	query   url.Values
}

// problem is an error that the reader of a page can mend.
type problem struct {
	status int
	text   string
}

func (p problem) Error() string { return p.text }

func problemf(status int, format string, args ...any) error {
	return problem{status, fmt.Sprintf(format, args...)}
}

// oneOf returns a value of the address that must be one of some; the first of them without one.
func (r *request) oneOf(name string, values ...string) (string, error) {
	switch value := r.query.Get(name); {
	case value == "":
		return values[0], nil
	case slices.Contains(values, value):
		return value, nil
	default:
		return "", problemf(http.StatusBadRequest, "%s: %.40q is none: use %s", name, value, strings.Join(values, ", "))
	}
}

// checkNames refuses a name that the page does not know, such as a filter that is spelled wrong: the page
// would show, or export, what the filter leaves out.
func (r *request) checkNames(names []string) error {
	for _, name := range slices.Sorted(maps.Keys(r.query)) {
		switch {
		case slices.Contains(names, name):
		case len(names) == 0:
			return problemf(http.StatusBadRequest, "%.40q: the address of this page has no filters", name)
		default:
			return problemf(http.StatusBadRequest, "%.40q is not a name that the address of this page has: use %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// known returns a page that refuses a person, team or server that no record has: it would show zeros.
func (c *Console) known(h func(*request) error) func(*request) error {
	return func(r *request) error {
		f := query.Filter{Principal: r.query.Get("principal"), Team: r.query.Get("team")}
		if server := r.query.Get("server"); server != "" {
			f.Servers = []string{server}
		}
		if err := c.trace.Resolve(r.Context(), &f); err != nil {
			return err
		}
		return h(r)
	}
}

// noPage answers for a path without a page.
func (c *Console) noPage(r *request) error {
	return problemf(http.StatusNotFound, "there is no page %.200q", r.URL.Path)
}

// page returns the handler of a page for those who are let in. names may be in its address.
func (c *Console) page(h func(*request) error, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := c.sessionOf(r)
		if s == nil {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		values, malformed := url.ParseQuery(r.URL.RawQuery) // URL.Query leaves out what is malformed
		req := &request{Request: r, w: w, session: s, query: values}
		c.mu.Lock()
		ready, failed, building := c.ready, c.failed, c.building
		c.mu.Unlock()
		if !ready && r.Method == http.MethodPost && r.URL.Path != "/logout" {
			c.show(req, http.StatusServiceUnavailable, "problem", "This can't be done now", map[string]any{"Error": "The index is being made. Nothing was changed: try again in a moment."})
			return
		}
		if !ready && r.URL.Path != "/events" && r.URL.Path != "/logout" {
			v := map[string]any{"Progress": building}
			if failed != nil {
				v["Error"] = failed.Error()
			}
			c.show(req, http.StatusServiceUnavailable, "building", "The index is being made", v)
			return
		}
		err := req.checkNames(names)
		if malformed != nil {
			err = problemf(http.StatusBadRequest, "the address is malformed: %v", malformed)
		}
		if err == nil {
			err = h(req)
		}
		if err == nil || r.Context().Err() != nil {
			return
		}
		status, title, text := http.StatusInternalServerError, "This page can't be shown", err.Error()
		if p, ok := errors.AsType[problem](err); ok {
			status = p.status
		} else if wrong, ok := errors.AsType[*query.UsageError](err); ok {
			status, text = http.StatusBadRequest, wrong.Field+": "+wrong.Err.Error() // the command line has the flag --Field
			if errors.Is(err, query.ErrUnknown) {
				// A limit, a branch or a definition can be older than the trace.
				status, title, text = http.StatusNotFound, "No such records", text+". Records that retention has removed are not in the trace."
			}
		} else if errors.Is(err, query.ErrNotFound) {
			status = http.StatusNotFound
		} else {
			c.o.Log.Error("a page can't be shown", "path", r.URL.Path, "err", err)
		}
		c.show(req, status, "problem", title, map[string]any{"Error": text})
	})
}

// view is what a template gets.
type view struct {
	Title   string
	Path    string
	Session *session
	Said    string // what the form before did
	D       any    // of the page
}

// show answers with a page.
func (c *Console) show(r *request, status int, name, title string, data any) error {
	var b bytes.Buffer
	c.mu.Lock()
	said := ""
	if r.Header.Get("X-Live") == "" { // an update of a page would take it from the page that follows
		said, r.session.said = r.session.said, ""
	}
	c.mu.Unlock()
	if err := c.pages[name].Execute(&b, view{title, r.URL.Path, r.session, said, data}); err != nil {
		return err
	}
	r.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	r.w.WriteHeader(status)
	_, _ = r.w.Write(b.Bytes()) // the reader is gone
	return nil
}

// maxStreams bounds the open streams of events of a session.
const maxStreams = 64

// events is a stream that says when something changed, at most once in a second.
func (c *Console) events(r *request) error {
	r.session.streams.Add(1)
	defer r.session.streams.Add(-1)
	if r.session.streams.Load() > maxStreams {
		return problemf(http.StatusTooManyRequests, "%d pages are being updated: close some", maxStreams)
	}
	h := r.w.Header()
	h.Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(r.w)
	const alive = ":\n\n"
	for word := alive; ; { // the first one tells the page that it is connected
		c.mu.Lock()
		changed := c.changed // taken before the page hears of the last change, and loads what is new
		c.mu.Unlock()
		_ = out.SetWriteDeadline(time.Now().Add(30 * time.Second)) // not supported by test recorders
		if _, err := fmt.Fprint(r.w, word); err != nil || out.Flush() != nil {
			return nil // the reader is gone
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-changed:
			word = "event: changed\ndata: 1\n\n"
		case <-time.After(15 * time.Second):
			word = alive
		}
	}
}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }
