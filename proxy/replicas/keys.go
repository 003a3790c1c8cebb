package replicas

import (
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"time"
)

const (
	dialWait   = 2 * time.Second
	pingAfter  = 5 * time.Second // of silence on a connection: a machine may be gone without a word
	pingWait   = 5 * time.Second
	maxStreams = 100_000 // of one connection: each session can have a stream
)

// keys is what replicas prove to each other: that they know the key of the configuration. Each has a
// certificate with the key pair that is made from it, so a fleet needs one secret and no authority.
type keys struct {
	public      ed25519.PublicKey
	certificate tls.Certificate
}

func newKeys(secret string) (k keys, err error) {
	seed, err := hkdf.Key(sha256.New, []byte(secret), nil, "foldgate replicas", ed25519.SeedSize)
	if err != nil {
		return k, fmt.Errorf("replicas.key: %w", err)
	}
	private := ed25519.NewKeyFromSeed(seed)
	k.public = private.Public().(ed25519.PublicKey)
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, k.public, private)
	if err != nil {
		return k, fmt.Errorf("replicas.key: %w", err)
	}
	k.certificate = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	return k, nil
}

// verify accepts a peer that has proved to have the key pair. TLS has checked the proof.
func (k keys) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 || !k.public.Equal(cs.PeerCertificates[0].PublicKey) {
		return errors.New("the peer has another replicas.key")
	}
	return nil
}

func (k keys) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{k.certificate},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, // verify checks the key instead of a name
		VerifyConnection: k.verify,
	}
}

func (k keys) transport() *http.Transport {
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialWait}, Config: k.config()}
			ctx, cancel := context.WithTimeout(ctx, 2*dialWait)
			defer cancel()
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errNotTaken, err)
			}
			return c, nil
		},
		Protocols: http2Only(), HTTP2: http2Config(), IdleConnTimeout: 2 * time.Minute, DisableCompression: true,
	}
}

// server returns the server for requests that other replicas pass on.
func (k keys) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, TLSConfig: k.config(), Protocols: http2Only(), HTTP2: http2Config(),
		ReadHeaderTimeout: 2 * dialWait, IdleTimeout: 4 * time.Minute,
	}
}

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	return p
}

func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingWait}
}
