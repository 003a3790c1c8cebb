package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"

	"github.com/foldgate/foldgate/internal/publicip"
)

const (
	// refetch is the pause after a fetch that failed or lacked the wanted key. It applies to all key ids.
	// keysFresh is the age at which keys are fetched again while they are used. keysUsable is the age up to
	// which they are used if the issuer does not answer.
	refetch    = 30 * time.Second
	keysFresh  = 15 * time.Minute
	keysUsable = 24 * time.Hour
	// fetchTime bounds the fetch of keys with the metadata before it, and maxDocument each answer, in
	// bytes.
	fetchTime   = 10 * time.Second
	maxDocument = 1 << 20
	maxKeys     = 256
)

var errUnknownKey = errors.New("the issuer has no such key")

// keys are the public keys of an issuer. They are fetched when a token needs them.
type keys struct {
	issuer, url string // url is "" if the metadata names it
	log         *slog.Logger
	client      *http.Client

	mu      sync.Mutex
	set     jwk.Set       // nil before the first answer
	fetched time.Time     // when set came
	barren  time.Time     // the end of the last fetch that did not bring the key that was looked for
	running chan struct{} // closed when the fetch under way is over; nil if there is none
	err     error         // of the last fetch
}

func newKeys(issuer, jwks string, log *slog.Logger) *keys {
	k := &keys{issuer: issuer, url: jwks, log: log}
	k.client = &http.Client{
		// An issuer answers itself: a redirect could lead anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("it redirects, which is not followed: give the final URL")
		},
		Transport: &http.Transport{DialContext: k.dial, TLSHandshakeTimeout: fetchTime, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute},
	}
	return k
}

// find returns the key with an id. For "" it is the only key. A key that is not known is looked for
// at the issuer, by one fetch for all that wait.
func (k *keys) find(ctx context.Context, kid string) (jwk.Key, error) {
	k.mu.Lock()
	key, age := k.lookup(kid), time.Since(k.fetched)
	if age > keysUsable {
		key = nil
	}
	if (key == nil || age > keysFresh) && k.running == nil && time.Since(k.barren) >= refetch {
		k.running = make(chan struct{})
		go k.fetch(kid)
	}
	running := k.running
	k.mu.Unlock()
	if key != nil {
		return key, nil
	}
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.set == nil || time.Since(k.fetched) > keysUsable {
		return nil, fmt.Errorf("no keys: %w", k.err)
	}
	if key = k.lookup(kid); key == nil {
		return nil, errUnknownKey
	}
	return key, nil
}

// lookup returns a key of the set, nil if there is none. The caller holds k.mu.
func (k *keys) lookup(kid string) (found jwk.Key) {
	if k.set == nil {
		return nil
	}
	for i := range k.set.Len() {
		key, _ := k.set.Key(i)
		if use, given := key.KeyUsage(); given && use != "sig" {
			continue
		}
		id, _ := key.KeyID()
		switch {
		case kid != "" && id == kid:
			return key
		case kid == "" && found != nil:
			return nil // of several, the token must name its own
		case kid == "":
			found = key
		}
	}
	return found
}

// fetch gets the keys, for a token that names the key kid.
func (k *keys) fetch(kid string) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTime)
	defer cancel()
	set, err := k.get(ctx)
	if err != nil {
		k.log.Warn("the keys of an issuer can't be had; those of before stay in use for a day", "issuer", k.issuer, "err", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err = err; err == nil {
		k.set, k.fetched = set, time.Now()
	}
	if err != nil || k.lookup(kid) == nil {
		k.barren = time.Now()
	}
	close(k.running)
	k.running = nil
}

// get fetches the keys, and before them the metadata if the configuration does not say where the
// keys are.
func (k *keys) get(ctx context.Context) (jwk.Set, error) {
	at := k.url
	if at == "" {
		var err error
		if at, err = k.discover(ctx); err != nil {
			return nil, err
		}
	}
	body, err := k.read(ctx, at)
	if err != nil {
		return nil, err
	}
	set, err := jwk.Parse(body, jwk.WithIgnoreParseError(true)) // of keys that it does not know (RFC 7517, section 5)
	if err == nil && set.Len() == 0 {
		_, err = jwk.Parse(body) // no key at all is a set; only unknown ones do not replace the keys of before
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not a set of keys that foldgate knows", at)
	}
	if set.Len() > maxKeys {
		return nil, fmt.Errorf("%s has %d keys, more than %d", at, set.Len(), maxKeys)
	}
	return set, nil
}

// discover returns the URL of the keys by the issuer's metadata: of OpenID Connect, or else of
// OAuth (RFC 8414).
func (k *keys) discover(ctx context.Context) (string, error) {
	u, err := url.Parse(k.issuer)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(u.Path, "/")
	var faults []error
	for _, place := range []string{path + "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server" + path} {
		at := *u
		at.Path = place
		body, err := k.read(ctx, at.String())
		var metadata struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		switch {
		case err != nil:
		case json.Unmarshal(body, &metadata) != nil:
			err = fmt.Errorf("%s: not metadata of an issuer", &at)
		case metadata.Issuer != k.issuer:
			err = fmt.Errorf("%s is the metadata of the issuer %q", &at, metadata.Issuer)
		case CheckURL(metadata.Keys) != "":
			err = fmt.Errorf("%s: jwks_uri %s", &at, CheckURL(metadata.Keys))
		default:
			return metadata.Keys, nil
		}
		faults = append(faults, err)
	}
	return "", errors.Join(faults...)
}

// read gets a document.
func (k *keys) read(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", at, res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if err == nil && len(body) > maxDocument {
		err = fmt.Errorf("%s: more than %d bytes", at, maxDocument)
	}
	return body, err
}

// dial connects to the hosts that the configuration names, and to public addresses. Metadata can't
// lead to addresses inside the operator's network.
func (k *keys) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	if !k.configured(addr) {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !publicip.Is(to.Addr()) {
				return fmt.Errorf("%s is not a public address, and the issuer's metadata names it: if that is right, give its URL as jwks_url", address)
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, addr)
}

// configured reports whether the configuration names a host and port.
func (k *keys) configured(addr string) bool {
	for _, s := range []string{k.issuer, k.url} {
		u, err := url.Parse(s)
		if err != nil || s == "" {
			continue
		}
		port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
		if addr == net.JoinHostPort(u.Hostname(), port) {
			return true
		}
	}
	return false
}
