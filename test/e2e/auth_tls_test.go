//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// selfSigned writes a certificate for 127.0.0.1 and its key into dir, and
// returns the pool that trusts it.
func selfSigned(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "foldgate"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, filepath.Join(dir, "cert.pem"), string(chain))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(chain)
	return pool
}

// With a certificate foldgate speaks HTTPS and nothing else.
func TestTLS(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+"tls: {cert: cert.pem, key: key.pem}\n"+fakeConfig(recordFile(t), ""))
	pool := selfSigned(t, g.dir)
	at := g.http()
	if !strings.HasPrefix(at, "https://") {
		t.Fatalf("foldgate listens on %s, want https", at)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	t.Cleanup(client.CloseIdleConnections)
	token := http.Header{"Authorization": {"Bearer " + tokenOf["bob"]}}
	if status, _, body := answered(t, client, "POST", at, rawInitialize, token); status != 200 || !strings.Contains(body, `"serverInfo"`) {
		t.Errorf("initialize over https = %d %s", status, body)
	}
	if status, _, _ := answered(t, client, "POST", at, rawInitialize, nil); status != 401 {
		t.Errorf("initialize over https without a token = %d", status)
	}
	if status, _, body := answered(t, http.DefaultClient, "POST", "http"+strings.TrimPrefix(at, "https"), rawInitialize, token); status != 400 || strings.Contains(body, "serverInfo") {
		t.Errorf("initialize over plain http = %d %s, want 400", status, body)
	}
}

// A renewed certificate is used for new connections after a reload.
func TestReloadOfACertificate(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+"tls: {cert: cert.pem, key: key.pem}\n"+fakeConfig(recordFile(t), ""))
	old := selfSigned(t, g.dir)
	at := g.http()
	renewed := selfSigned(t, g.dir)
	get := func(pool *x509.CertPool) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
		res, err := client.Get(strings.TrimSuffix(at, "/mcp") + "/healthz")
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := get(old); err != nil {
		t.Fatal(err)
	}
	g.reload(reloaded)
	if err := get(renewed); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	if get(old) == nil {
		t.Error("the old certificate is still in use")
	}
}
