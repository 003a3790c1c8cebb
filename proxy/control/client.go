package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Client asks one gateway. All methods are safe for concurrent use.
type Client struct {
	Dir  string // the gateway's own state directory
	By   string // the person for whom the client asks, for the trace; "" for the user of the process
	http http.Client
	wait time.Duration // for an answer
}

// answerWait bounds the wait for an answer: a process that is stopped, such as by a debugger, never answers.
const answerWait = time.Minute

// ErrNoGateway says that no gateway takes commands.
var ErrNoGateway = errors.New("no gateway that takes commands")

// Find returns the gateways that use a state directory and take commands. The error is [ErrNoGateway] if
// there is none, and says what to do.
func Find(ctx context.Context, state string) (found []*Client, err error) {
	entries, err := os.ReadDir(state)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%s is another user's: run the command as the user who runs the gateway, such as with sudo -u", state)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	dirs := []string{state}
	for _, e := range entries {
		if ok, _ := filepath.Match("instance-*", e.Name()); ok {
			dirs = append(dirs, filepath.Join(state, e.Name()))
		}
	}
	for _, dir := range dirs {
		path := socket(dir)
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			_ = c.Close()
		case errors.Is(err, os.ErrPermission):
			return nil, fmt.Errorf("%s is another user's: run the command as the user who runs the gateway, such as with sudo -u", path)
		default: // no gateway, or one that died
			continue
		}
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }
		found = append(found, &Client{Dir: dir, wait: answerWait, http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}})
	}
	if len(found) == 0 {
		if whole, err := filepath.Abs(state); err == nil {
			state = whole
		}
		return nil, fmt.Errorf("%w uses the state directory %s: start one with listen, or name its configuration with --config. A gateway on standard input and output takes none: its agent runs as the same user and could lift its own limits; stop it, or end its session in the host", ErrNoGateway, state)
	}
	return found, nil
}

// OpenBranches is [Gateway.OpenBranches].
func (c *Client) OpenBranches(ctx context.Context) ([]Branch, error) {
	out, err := ask[map[string][]Branch](ctx, c, http.MethodGet, "branches")
	return out["branches"], err
}

// EndBranch is [Gateway.EndBranch].
func (c *Client) EndBranch(ctx context.Context, id, reason string) (Branch, error) {
	return ask[Branch](ctx, c, http.MethodDelete, "branches/"+url.PathEscape(id)+with("reason", reason))
}

// Budgets is [Gateway.Budgets].
func (c *Client) Budgets(ctx context.Context, limit string) ([]Budget, error) {
	out, err := ask[map[string][]Budget](ctx, c, http.MethodGet, "budgets"+with("limit", limit))
	return out["budgets"], err
}

// ResetBudget is [Gateway.ResetBudget].
func (c *Client) ResetBudget(ctx context.Context, limit, subject string) (int, error) {
	out, err := ask[map[string]int](ctx, c, http.MethodDelete, "budgets/"+url.PathEscape(limit)+with("subject", subject))
	return out["reset"], err
}

// Read lets the gateway record that By reads a part of the trace, such as a record by its id.
func (c *Client) Read(ctx context.Context, part, name string) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, "read?"+url.QueryEscape(part)+"="+url.QueryEscape(name))
	return err
}

// with returns the query of a request with one value, none if that is empty.
func with(name, value string) string {
	if value == "" {
		return ""
	}
	return "?" + url.QueryEscape(name) + "=" + url.QueryEscape(value)
}

// Reload is [Gateway.Reload].
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return ask[Reloaded](ctx, c, http.MethodPost, "reload")
}

// Erase is [Gateway.Erase], for the user of the process.
func (c *Client) Erase(ctx context.Context, seqs []uint64) error {
	body, err := json.Marshal(trace.Ranges(seqs))
	if err == nil && len(body) > maxSpans {
		err = errTooLarge
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	_, err = ask[struct{}](ctx, c, http.MethodPost, "trace/erase", body...)
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("the gateway in %s goes on erasing; the command without --yes shows what is left: %w", c.Dir, context.Canceled)
	}
	return err
}

// maxAnswer bounds an answer that the client reads, in bytes.
const maxAnswer = 64 << 20

// ask sends one request. One with a body, which is an erasure, can take as long as it needs.
func ask[T any](ctx context.Context, c *Client, method, path string, body ...byte) (out T, err error) {
	if len(body) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.wait, fmt.Errorf("none for %v; see its log, and whether its process is stopped", c.wait))
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://foldgate/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	if c.By != "" {
		req.Header.Set(byHeader, url.QueryEscape(c.By))
	}
	res, err := c.http.Do(req)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return out, fmt.Errorf("the gateway in %s may still do what it was asked, but gives no answer: %w", c.Dir, context.Cause(ctx))
	case err != nil && ctx.Err() != nil:
		return out, fmt.Errorf("the gateway in %s may still do what it was asked, without an answer: %w", c.Dir, ctx.Err())
	}
	if err != nil {
		return out, fmt.Errorf("the gateway in %s did not answer: it is another user's (run the command as that user, such as with sudo -u), or has just ended: %w", c.Dir, err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		var fault struct{ Error string }
		_ = json.Unmarshal(body, &fault)
		if strings.HasPrefix(fault.Error, ErrNoBranch.Error()) {
			return out, ErrNoBranch
		}
		if named, ok := strings.CutPrefix(fault.Error, ErrNoLimit.Error()+" "); ok {
			return out, fmt.Errorf("%w %s", ErrNoLimit, named)
		}
		return out, errors.New(cmp.Or(fault.Error, "the gateway is of another version, and does not know this command: "+res.Status))
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out, err
}
