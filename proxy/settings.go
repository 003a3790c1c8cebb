package proxy

import (
	"log/slog"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/router"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/tools"
)

// settings is the configuration in force, with everything that is derived from it and that a reload
// replaces. It does not change once it is in force: a part reads Gateway.settings once for a call, or
// for one decision.
type settings struct {
	router.Settings
	folding interceptor.FoldPolicy
	access  server.Access
}

// newSettings derives the settings from a valid configuration. They have no servers yet. before is the
// authenticator of the settings that they replace, or nil.
func newSettings(c config.Config, before *auth.Authenticator, log *slog.Logger) *settings {
	own := tools.Definitions(c.Folding, c.LLM.Runs())
	if c.Tools.Searchable() {
		own = append(own, tools.SearchDefinitions()...)
	}
	st := &settings{
		Settings: router.Settings{Config: c, Rules: catalog.NewRules(c, own)},
		access:   server.Access{Hosts: c.AllowedHosts, Origins: c.AllowedOrigins},
	}
	st.folding = engine.FoldPolicy(&st.Config)
	st.access.Auth = NewAuthenticator(c, log, before)
	return st
}

// NewAuthenticator returns what says who has a token of the configuration or of its issuers, nil if it has
// neither. before is the one that it replaces, or nil.
func NewAuthenticator(c config.Config, log *slog.Logger, before *auth.Authenticator) *auth.Authenticator {
	var tokens []auth.Token
	for _, name := range c.PrincipalNames() {
		for _, t := range c.Principals[name].All() {
			digest, _ := t.Digest()
			tokens = append(tokens, auth.Token{Principal: name, Digest: digest, Expires: t.Expires})
		}
	}
	return auth.New(auth.Options{Tokens: tokens, Config: c.Auth, PublicURL: c.PublicURL, Log: log, Before: before, Keep: c.ExchangesTokens()})
}
