package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// token is a token response, as it is stored.
type token struct {
	Access  string    `json:"access"`
	Refresh string    `json:"refresh,omitempty"`
	Expiry  time.Time `json:"expiry,omitzero"` // zero if the server names none
	Renew   time.Time `json:"renew,omitzero"`  // when a new one is due, before Expiry
	Scopes  []string  `json:"scopes,omitempty"`

	kind string // issued_token_type of an exchange
	id   string // the ID token beside it, or ""
	by   string // the login of the person whom it is for
}

// early is how long before its expiry a token is renewed, or a quarter of its life if that is shorter.
const early = 30 * time.Second

func (t *token) fresh() bool { return t.usable() && (t.Renew.IsZero() || time.Now().Before(t.Renew)) }
func (t *token) usable() bool {
	return t != nil && t.Access != "" && (t.Expiry.IsZero() || time.Now().Before(t.Expiry))
}

func (t *token) access() string {
	if t == nil {
		return ""
	}
	return t.Access
}

// fault is an error response of a token endpoint (RFC 6749, section 5.2).
type fault struct {
	status int
	code   string // such as invalid_grant, or ""
	detail string
}

func (f *fault) Error() string {
	s := fmt.Sprintf("the authorization server refuses: HTTP %d", f.status)
	for _, part := range []string{f.code, f.detail} {
		if part != "" {
			s += " " + part
		}
	}
	return s
}

// client is foldgate as a client of an authorization server.
type client struct {
	ID, Secret string
	methods    []string // in which the token endpoint takes the secret
	proof      string   // a client assertion, instead of a secret
}

// requestToken asks a token endpoint for a token. No error has a secret of the form in it.
func requestToken(ctx context.Context, hc *http.Client, endpoint string, c client, form url.Values) (*token, error) {
	basic := c.Secret != "" && (len(c.methods) == 0 || slices.Contains(c.methods, "client_secret_basic"))
	if !basic {
		form.Set("client_id", c.ID)
	}
	if !basic && c.Secret != "" {
		form.Set("client_secret", c.Secret)
	}
	if c.proof != "" {
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", c.proof)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if basic {
		req.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret))
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("token endpoint: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("token endpoint: %w", err)
	}
	var answer struct {
		AccessToken      string      `json:"access_token"`
		TokenType        string      `json:"token_type"`
		RefreshToken     string      `json:"refresh_token"`
		ExpiresIn        json.Number `json:"expires_in"`
		Scope            string      `json:"scope"`
		IssuedTokenType  string      `json:"issued_token_type"`
		IDToken          string      `json:"id_token"`
		Error            string      `json:"error"`
		ErrorDescription string      `json:"error_description"`
	}
	err = json.Unmarshal(body, &answer)
	if resp.StatusCode/100 != 2 || answer.Error != "" {
		secrets := []string{c.Secret}
		for _, name := range []string{"code", "code_verifier", "refresh_token", "assertion", "subject_token", "client_assertion"} {
			secrets = append(secrets, form.Get(name))
		}
		return nil, &fault{resp.StatusCode, tidy(answer.Error, 64, secrets), tidy(answer.ErrorDescription, 300, secrets)}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("token endpoint: its answer is not the JSON expected (HTTP %d)", resp.StatusCode) // err may quote a token
	case answer.AccessToken == "" || len(answer.AccessToken) > maxToken || strings.ContainsFunc(answer.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fmt.Errorf("token endpoint: its answer has no access_token of 1 to %d printable characters", maxToken)
	case answer.TokenType != "" && !strings.EqualFold(answer.TokenType, "bearer") && form.Get("requested_token_type") != oauthex.TokenTypeIDJAG:
		return nil, fmt.Errorf("token endpoint: it gives a token of the type %q, and foldgate knows only bearer tokens", tidy(answer.TokenType, 20, nil))
	}
	t := &token{Access: answer.AccessToken, Refresh: answer.RefreshToken, Scopes: strings.Fields(answer.Scope), kind: answer.IssuedTokenType, id: answer.IDToken}
	if seconds, err := answer.ExpiresIn.Int64(); err == nil && seconds > 0 {
		t.lives(time.Duration(min(seconds, 10*365*24*3600)) * time.Second)
	}
	return t, nil
}

func (t *token) lives(life time.Duration) {
	t.Expiry = time.Now().Add(life)
	t.Renew = t.Expiry.Add(-min(early, life/4))
}

// maxToken is the size of the longest token, in bytes.
const maxToken = 64 << 10

// tidy makes a foreign text fit for an error: printable, short, and without secrets.
func tidy(text string, most int, secrets []string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.NewReplacer(s, "[secret]", url.QueryEscape(s), "[secret]").Replace(text)
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
