package policy

import (
	"errors"
	"net/url"
	"path"
	"strings"
)

var errSpelling = errors.New("the URI can be read in two ways: write it without dots, doubled slashes and escapes that it does not need")

// names returns the names to match. A URI has a second spelling, the one in which a server may read
// it. It fails for a URI of which that can't be told.
func (r *Request) names() ([]string, error) {
	names := []string{r.Name}
	if r.Full != "" && r.Full != r.Name {
		names = append(names, r.Full)
	}
	if r.Kind != Resource || strings.Contains(r.Name, "{") && r.Listing { // a template
		return names, nil
	}
	plain, err := normalize(r.Name)
	if err != nil {
		return nil, err
	}
	if plain != r.Name {
		names = append(names, plain)
	}
	return names, nil
}

// normalize returns a URI with its scheme and host in lower case, without escapes, and without . and
// .. in its path. Escapes that were escaped themselves could hide those, so they are an error.
func normalize(uri string) (string, error) {
	once, err := url.PathUnescape(uri)
	if err != nil || strings.ContainsAny(once, "\\\x00") {
		return "", errSpelling
	}
	if twice, err := url.PathUnescape(once); err == nil && twice != once {
		return "", errSpelling
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme == "" {
		return "", errSpelling
	}
	out, plain := u.Scheme+":", u.Path
	switch {
	case u.Opaque != "":
		plain, _ = url.PathUnescape(u.Opaque) // once shows that it can be
	case strings.HasPrefix(uri[len(u.Scheme)+1:], "//"):
		if out += "//"; u.User != nil {
			out += u.User.String() + "@"
		}
		out += strings.ToLower(u.Host)
	}
	if strings.Contains(plain, "/") {
		directory := strings.HasSuffix(plain, "/")
		if plain = path.Clean(plain); directory && plain != "/" {
			plain += "/"
		}
	}
	out += plain
	if query, _ := url.PathUnescape(u.RawQuery); query != "" {
		out += "?" + query
	}
	if u.Fragment != "" {
		out += "#" + u.Fragment
	}
	return out, nil
}
