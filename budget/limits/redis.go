package limits

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"
)

// Both scripts are idempotent by the operation's id: do may send them again after a lost answer.
var (
	//go:embed take.lua
	takeText   string
	takeScript = valkey.NewLuaScript(takeText)
	//go:embed change.lua
	changeText   string
	changeScript = valkey.NewLuaScript(changeText)
)

// remote is the [Store] in Redis or Valkey. All keys have one hash tag: a cluster has them in one
// slot, and a script can change them together. Each counter is a hash with two fields for each of
// its parts; a sorted set has the keys of all counters by the time of their expiry.
type remote struct {
	options valkey.ClientOption
	name    string // of the server, for errors
	prefix  string
	most    int64 // counters
	take    *valkey.Lua

	mu      sync.Mutex // guards the fields below
	client  valkey.Client
	err     error         // of the last attempt to connect
	dialing chan struct{} // closed when it ends; nil if none runs
	closed  bool
}

var prefixName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// OpenRedis returns a store in Redis 7 or Valkey. Gateways with one prefix share the counters. The
// URL is redis://, rediss:// (with TLS) or unix://, with user and password; addr=HOST:PORT in its
// query names further nodes of a cluster. With master_set=NAME the addresses are of sentinels, with
// sentinel_username and sentinel_password. ca=FILE names the certificates of the authorities to trust
// instead of those of the system; cert=FILE and key=FILE are for a server that wants a certificate of
// its clients. The store connects when it is used: a server that is down is no error here.
func OpenRedis(address, prefix string) (Store, error) {
	options, err := valkey.ParseURL(address)
	if err != nil {
		var inURL *url.Error // it quotes the URL, and so the password
		if errors.As(err, &inURL) {
			err = inURL.Err
		}
		return nil, fmt.Errorf("store of the limits: the URL is wrong: use redis://, rediss:// or unix://, such as rediss://user:password@host:6379/0: %w", err)
	}
	if !prefixName.MatchString(prefix) {
		return nil, fmt.Errorf("store of the limits: prefix %q: use 1 to 64 of letters, digits, _, . and -", prefix)
	}
	options.DisableRetry = true // see do
	options.DisableCache = true // it needs a permission more
	u, _ := url.Parse(address)  // ParseURL has parsed it
	q := u.Query()
	if err := certificates(options.TLSConfig, q.Get("ca"), q.Get("cert"), q.Get("key")); err != nil {
		return nil, fmt.Errorf("store of the limits: %w", err)
	}
	options.Sentinel.TLSConfig = options.TLSConfig
	options.Sentinel.Username, options.Sentinel.Password = q.Get("sentinel_username"), q.Get("sentinel_password")
	options.Sentinel.TopologyRefreshInterval = 5 * time.Second // sentinels can lose the message that the master is another one
	return &remote{options: options, name: strings.Join(options.InitAddress, ", "), prefix: "{foldgate:" + prefix + "}:", most: maxCounters, take: takeScript}, nil
}

// certificates reads the files of the URL into a configuration, which is nil without TLS.
func certificates(c *tls.Config, ca, cert, key string) error {
	if ca+cert+key == "" {
		return nil
	}
	if c == nil {
		return errors.New("ca, cert and key need TLS: use a URL that begins with rediss://")
	}
	for _, file := range []string{ca, cert, key} {
		if file != "" && !filepath.IsAbs(file) {
			return fmt.Errorf("file %q in the URL: use an absolute path", file)
		}
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("file %s, the ca of the URL, has no certificate in PEM", ca)
		}
	}
	if cert+key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return errors.New("the URL has one of cert and key: use both")
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("cert and key of the URL: %w", err)
	}
	c.Certificates = []tls.Certificate{own}
	return nil
}

// connect returns the client. It connects if there is none.
func (r *remote) connect(ctx context.Context) (valkey.Client, error) {
	r.mu.Lock()
	if r.client == nil && r.dialing == nil && !r.closed {
		dialing := make(chan struct{})
		r.dialing = dialing
		go func() {
			client, err := valkey.NewClient(r.options)
			if err == nil {
				if err = evicts(client); err != nil {
					client.Close()
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if err == nil && r.closed {
				client.Close()
			} else if err == nil {
				r.client = client
			}
			r.err, r.dialing = err, nil
			close(dialing)
		}()
	}
	dialing := r.dialing
	r.mu.Unlock()
	if dialing != nil {
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil && r.err == nil {
		return nil, errors.New("it is closed")
	}
	return r.client, r.err
}

// evicts returns an error for a server that deletes counters when its memory is full. A server that
// does not let its user ask is trusted.
func evicts(client valkey.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, err := client.Do(ctx, client.B().Info().Section("memory").Build()).ToString()
	if err == nil && !strings.Contains(info, "maxmemory:0\r") && !strings.Contains(info, "maxmemory_policy:noeviction") {
		return errors.New("it evicts keys when its memory is full, and counters with them: set maxmemory-policy to noeviction")
	}
	return nil
}

// do runs f with the client, again while connections are lost, and leaves it when ctx is done: the
// client can wait longer, for example while it connects again. The client does not repeat commands
// itself, since it would use one again while a lost connection can still read it.
func do[T any](ctx context.Context, r *remote, f func(valkey.Client) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
			client, err := r.connect(ctx)
			again := errors.Is(err, io.EOF) // else the server is down
			var got result
			if err == nil {
				got.value, err = f(client)
				refused, ok := valkey.IsValkeyErr(err)
				again = err != nil && !ok || ok && (refused.IsLoading() || refused.IsClusterDown() || refused.IsTryAgain())
			}
			if err != nil {
				got.err = r.diagnose(err)
			}
			if !again {
				done <- got
				return
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				done <- got
				return
			}
		}
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		var none T
		return none, r.diagnose(ctx.Err())
	}
}

func (r *remote) Take(ctx context.Context, op Op) (Answer, error) {
	keys := []string{r.prefix + "op:" + op.ID, r.prefix + "index"}
	args := numbers(nil, op.Tokens, op.Calls, flag(op.Whole), op.ExtraTokens, op.ExtraCalls, int64(rememberOps/time.Second), share, r.most)
	for _, c := range op.Counters {
		keys = append(keys, r.prefix+"c:"+c.Key)
		args = numbers(args, c.From, min(c.Until, maxExact), c.Bucket, c.Oldest, c.Expires, c.Tokens, c.Calls, flag(c.Hard))
	}
	text, err := do(ctx, r, func(client valkey.Client) (string, error) {
		return r.take.Exec(ctx, client, keys, args).ToString()
	})
	if err != nil {
		return Answer{}, err
	}
	answer, err := readAnswer(text, len(op.Counters))
	if err != nil {
		return Answer{}, r.diagnose(err)
	}
	return answer, nil
}

// maxExact is the largest whole number that a script has exactly.
const maxExact = 1 << 53

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func numbers(to []string, all ...int64) []string {
	for _, n := range all {
		to = append(to, strconv.FormatInt(n, 10))
	}
	return to
}

// readAnswer reads what take.lua returns.
func readAnswer(text string, counters int) (a Answer, err error) {
	var n []int64
	for s := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return a, fmt.Errorf("answer %q: %w", text, err)
		}
		n = append(n, v)
	}
	const head = 10
	if len(n) < head || n[0] < 0 || n[0] > math.MaxInt64/1000 {
		return a, fmt.Errorf("answer %q is not one", text)
	}
	a = Answer{
		Now: time.UnixMicro(n[0]), Stale: n[1] == 1, Refused: n[2] == 1,
		Tokens: n[3], ExtraTokens: n[4], ExtraCalls: n[5],
		Tightest: int(n[6]), Calls: n[7] == 1, taken: Used{n[8], n[9]},
	}
	if a.Refused && a.Tightest == undone.Tightest {
		return a, errUndone
	}
	if !a.Stale && len(n) != head+2*counters || a.Tightest < -1 || a.Tightest >= counters {
		return a, fmt.Errorf("answer %q is not one for %d counters", text, counters)
	}
	for n = n[head:]; len(n) > 1; n = n[2:] {
		a.Used = append(a.Used, Used{n[0], n[1]})
	}
	return a, nil
}

func (r *remote) Change(ctx context.Context, id string, how How, changes []Change) error {
	if id == "" {
		id = "none"
	}
	const most = 500 // keys of one script; each part is an operation of its own
	for part := 0; ; part++ {
		some := changes[:min(most, len(changes))]
		changes = changes[len(some):]
		op := id
		if part > 0 {
			op += "." + strconv.Itoa(part)
		}
		keys := []string{r.prefix + "op:" + op, r.prefix + "index"}
		args := numbers(nil, int64(how), int64(rememberOps/time.Second))
		for _, c := range some {
			keys = append(keys, r.prefix+"c:"+c.Key)
			args = numbers(args, c.Bucket, c.Expires, c.Tokens, c.Calls)
		}
		_, err := do(ctx, r, func(client valkey.Client) (string, error) {
			return changeScript.Exec(ctx, client, keys, args).ToString()
		})
		if err != nil || len(changes) == 0 {
			return err
		}
	}
}

func (r *remote) List(ctx context.Context, keys ...string) ([]Count, error) {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = r.prefix + "c:" + keys[i]
	}
	return do(ctx, r, func(client valkey.Client) (all []Count, err error) {
		keys := names
		if len(keys) == 0 {
			keys, err = client.Do(ctx, client.B().Zrange().Key(r.prefix+"index").Min("0").Max("-1").Build()).AsStrSlice()
		}
		for len(keys) > 0 && err == nil {
			some := keys[:min(256, len(keys))]
			keys = keys[len(some):]
			var commands valkey.Commands
			for _, key := range some {
				commands = append(commands, client.B().Hgetall().Key(key).Build())
			}
			for i, got := range client.DoMulti(ctx, commands...) {
				fields, err := got.AsIntMap()
				if err != nil {
					return nil, err
				}
				counts := map[int64]Used{}
				for field, n := range fields {
					part, kind, _ := strings.Cut(field, ":")
					bucket, err := strconv.ParseInt(part, 10, 64)
					if err != nil {
						return nil, fmt.Errorf("counter %s: %w", some[i], err)
					}
					u := counts[bucket]
					if kind == "t" {
						u.Tokens = n
					} else {
						u.Calls = n
					}
					counts[bucket] = u
				}
				for bucket, u := range counts {
					all = append(all, Count{strings.TrimPrefix(some[i], r.prefix+"c:"), bucket, u})
				}
			}
		}
		return all, err
	})
}

func (r *remote) Delete(ctx context.Context, keys []string) error {
	_, err := do(ctx, r, func(client valkey.Client) (struct{}, error) {
		var commands valkey.Commands
		for _, key := range keys {
			key = r.prefix + "c:" + key
			commands = append(commands, client.B().Del().Key(key).Build(), client.B().Zrem().Key(r.prefix+"index").Member(key).Build())
		}
		for _, got := range client.DoMulti(ctx, commands...) {
			if err := got.Error(); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

func (r *remote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		r.client.Close()
	}
	r.client, r.err, r.closed = nil, nil, true
	return nil
}

func (r *remote) diagnose(err error) error {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("redis at %s: name the file with the certificate of its authority in the URL, by ca=FILE: %w", r.name, err)
	case strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Errorf("redis at %s: it refuses the certificate of foldgate, which cert=FILE and key=FILE name in the URL: %w", r.name, err)
	}
	if refused, ok := valkey.IsValkeyErr(err); ok && (strings.HasPrefix(refused.Error(), "NOPERM") || strings.HasPrefix(refused.Error(), "NOAUTH") || strings.HasPrefix(refused.Error(), "WRONGPASS")) {
		return fmt.Errorf("redis at %s: check user and password; the user needs ~%s* +@read +@write +@scripting +@connection +cluster|slots +cluster|shards +time +role: %w", r.name, r.prefix, err)
	}
	return fmt.Errorf("redis at %s: %w", r.name, err)
}
