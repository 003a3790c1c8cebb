package auth

import (
	"encoding/json"
	"slices"
	"strings"
)

// MetadataPath is where the metadata of a protected resource is (RFC 9728). The path of the resource
// follows it.
const MetadataPath = "/.well-known/oauth-protected-resource"

// servers returns the URLs of the issuers, sorted.
func (a *Authenticator) servers() (urls []string) {
	for _, is := range a.issuers {
		urls = append(urls, is.URL)
	}
	slices.Sort(urls)
	return urls
}

// Metadata returns the metadata of the resource at a path, "" for the whole endpoint, as JSON. It is
// nil without issuers.
func (a *Authenticator) Metadata(path string) []byte {
	if a == nil || len(a.issuers) == 0 {
		return nil
	}
	body, _ := json.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{a.publicURL + path, a.servers(), a.config.Scopes, []string{"header"}, "foldgate"})
	return body
}

// Challenge returns the header WWW-Authenticate for a request to a path that was refused.
func (a *Authenticator) Challenge(path string, f *Failure) string {
	c := `Bearer realm="foldgate"`
	if f.Given {
		c += `, error="invalid_token", error_description="` + description.Replace(f.Message) + `"`
	}
	return c + a.pointers(path, a.config.Scopes)
}

// StepUp returns the header WWW-Authenticate for a request that needs more scopes. all has the scopes of
// the token and the missing ones. It changes all. Some issuers (Entra) shorten scopes in tokens to
// what follows the last slash of the name that hosts ask for: these are named as in auth.scopes.
func (a *Authenticator) StepUp(path string, all []string) string {
	all = slices.DeleteFunc(all, func(s string) bool { return !scopeForm.MatchString(s) })
	for i, s := range all {
		if n := slices.IndexFunc(a.config.Scopes, func(full string) bool { return strings.HasSuffix(full, "/"+s) }); n >= 0 {
			all[i] = a.config.Scopes[n]
		}
	}
	return `Bearer realm="foldgate", error="insufficient_scope", error_description="the policy asks for more scopes"` + a.pointers(path, all)
}

// pointers names the scopes to ask for, and the metadata.
func (a *Authenticator) pointers(path string, scopes []string) (s string) {
	if len(a.issuers) == 0 {
		return ""
	}
	if len(scopes) > 0 {
		s = `, scope="` + strings.Join(scopes, " ") + `"`
	}
	return s + `, resource_metadata="` + a.publicURL + MetadataPath + path + `"`
}

// description leaves out what a quoted string can't have (RFC 6750).
var description = strings.NewReplacer(`"`, "'", `\`, "/")
