// Package redisdb connects to Redis or Valkey.
package redisdb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/foldgate/foldgate/internal/backoff"
)

// DB is a Redis or Valkey server, a cluster, or a master with replicas. It connects when it is used.
// It is safe for concurrent use.
type DB struct {
	// Prefix is what all keys begin with. It has a hash tag: a cluster has them in one slot.
	Prefix string

	options valkey.ClientOption
	name    string // of the server, for errors

	mu      sync.Mutex // guards the fields below
	client  valkey.Client
	err     error         // of the last attempt to connect
	dialing chan struct{} // closed when it ends; nil if none runs
	closed  bool
}

// parameters are those of the query of a URL. The first ones are documented.
var parameters = []string{"addr", "ca", "cert", "key", "master_set", "sentinel_username", "sentinel_password", "db", "dial_timeout", "write_timeout", "skip_verify", "protocol", "client_cache", "client_name", "max_retries"}

const documented = 7

var prefixName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Open returns the database at a URL, with keys that begin with {foldgate:prefix}. The
// URL is redis://, rediss:// (with TLS) or unix://, with user and password; addr=HOST:PORT in its
// query names further nodes of a cluster. With master_set=NAME the addresses are of sentinels, with
// sentinel_username and sentinel_password. ca=FILE names the certificates of the authorities to trust
// instead of those of the system; cert=FILE and key=FILE are for a server that wants a certificate of
// its clients. A server that is down is no error here.
func Open(address, prefix string) (*DB, error) {
	options, err := valkey.ParseURL(address)
	if err != nil {
		if inURL, ok := errors.AsType[*url.Error](err); ok { // it quotes the URL, and so the password
			err = inURL.Err
		}
		return nil, fmt.Errorf("the URL is wrong: use redis://, rediss:// or unix://, such as rediss://user:password@host:6379/0: %w", err)
	}
	if !prefixName.MatchString(prefix) {
		return nil, fmt.Errorf("prefix %q: use 1 to 64 of letters, digits, _, . and -", prefix)
	}
	options.DisableRetry = true // see Do
	options.DisableCache = true // it needs a permission more
	u, _ := url.Parse(address)  // ParseURL has parsed it
	q := u.Query()
	for _, name := range slices.Sorted(maps.Keys(q)) { // ParseURL ignores what it does not know
		if !slices.Contains(parameters, name) {
			return nil, fmt.Errorf("the URL is wrong: its query has %.40q; there are %s", name, strings.Join(parameters[:documented], ", "))
		}
	}
	if err := certificates(options.TLSConfig, q.Get("ca"), q.Get("cert"), q.Get("key")); err != nil {
		return nil, err
	}
	options.Sentinel.TLSConfig = options.TLSConfig
	options.Sentinel.Username, options.Sentinel.Password = q.Get("sentinel_username"), q.Get("sentinel_password")
	options.Sentinel.TopologyRefreshInterval = 5 * time.Second // sentinels can lose the message that the master is another one
	return &DB{Prefix: "{foldgate:" + prefix + "}:", options: options, name: strings.Join(options.InitAddress, ", ")}, nil
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
func (db *DB) connect(ctx context.Context) (valkey.Client, error) {
	db.mu.Lock()
	if db.client == nil && db.dialing == nil && !db.closed {
		dialing := make(chan struct{})
		db.dialing = dialing
		go func() {
			client, err := valkey.NewClient(db.options)
			if err == nil {
				if err = checkEviction(client); err != nil {
					client.Close()
				}
			}
			db.mu.Lock()
			defer db.mu.Unlock()
			if err == nil && db.closed {
				client.Close()
			} else if err == nil {
				db.client = client
			}
			db.err, db.dialing = err, nil
			close(dialing)
		}()
	}
	dialing := db.dialing
	db.mu.Unlock()
	if dialing != nil {
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.client == nil && db.err == nil {
		return nil, errors.New("it is closed")
	}
	return db.client, db.err
}

// checkEviction returns an error for a server that deletes counters when its memory is full. It returns nil
// if the user may not run INFO.
func checkEviction(client valkey.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, err := client.Do(ctx, client.B().Info().Section("memory").Build()).ToString()
	if err == nil && !strings.Contains(info, "maxmemory:0\r") && !strings.Contains(info, "maxmemory_policy:noeviction") {
		return errors.New("it evicts keys when its memory is full, and counters with them: set maxmemory-policy to noeviction")
	}
	return nil
}

var retries = backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}

// Do runs f with the client, again while connections are lost, and leaves it when ctx is done: the
// client can wait longer, for example while it connects again. The client does not repeat commands
// itself, since it would use one again while a lost connection can still read it.
func Do[T any](ctx context.Context, db *DB, f func(valkey.Client) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		for n := 0; ; n++ {
			client, err := db.connect(ctx)
			again := errors.Is(err, io.EOF) // else the server is down
			var got result
			if err == nil {
				got.value, err = f(client)
				refused, ok := valkey.IsValkeyErr(err)
				again = err != nil && !ok || ok && (refused.IsLoading() || refused.IsClusterDown() || refused.IsTryAgain())
			}
			if err != nil {
				got.err = db.Diagnose(err)
			}
			if !again || retries.Wait(ctx, n) != nil {
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
		return none, db.Diagnose(ctx.Err())
	}
}

// Close ends the connections. Later operations fail. It returns nil.
func (db *DB) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.client != nil {
		db.client.Close()
	}
	db.client, db.err, db.closed = nil, nil, true
	return nil
}

// Diagnose adds the name of the server to an error of it, and the remedy if it is known.
func (db *DB) Diagnose(err error) error {
	switch _, unknown := errors.AsType[x509.UnknownAuthorityError](err); {
	case unknown:
		return fmt.Errorf("redis at %s: name the file with the certificate of its authority in the URL, by ca=FILE: %w", db.name, err)
	case strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Errorf("redis at %s: it refuses the certificate of foldgate, which cert=FILE and key=FILE name in the URL: %w", db.name, err)
	}
	if refused, ok := valkey.IsValkeyErr(err); ok && (strings.HasPrefix(refused.Error(), "NOPERM") || strings.HasPrefix(refused.Error(), "NOAUTH") || strings.HasPrefix(refused.Error(), "WRONGPASS")) {
		return fmt.Errorf("redis at %s: check user and password; the user needs ~%s* +@read +@write +@scripting +@connection +cluster|slots +cluster|shards +time +role: %w", db.name, db.Prefix, err)
	}
	return fmt.Errorf("redis at %s: %w", db.name, err)
}
