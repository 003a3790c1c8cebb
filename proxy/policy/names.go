package policy

import (
	"errors"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

var errSpelling = errors.New("the URI can be read in two ways: write it as scheme://host/path or file:///path, without user, default port, outer spaces, dots, doubled slashes and escapes that it does not need")

// names returns two lists. An allow must match every name of the first. A deny needs to match one name of
// the second. A URI has a second spelling, the one in which a server may read it. A server may also ignore
// the end of a URI. names fails if it can't tell how a server reads a URI.
func (r *Request) names() (allow, deny []string, err error) {
	names := []string{r.Name}
	if r.Full != "" && r.Full != r.Name {
		names = append(names, r.Full)
	}
	if r.Kind != Resource || strings.Contains(r.Name, "{") && r.Listing { // a template
		return names, names, nil
	}
	plain, bare, err := normalize(r.Name)
	if err != nil {
		return nil, nil, err
	}
	if plain != r.Name {
		names = append(names, plain)
	}
	return names, append(slices.Clip(names), bare), nil
}

// defaultPorts has the schemes whose URIs everyone normalizes in the same way, as the URL standard of
// browsers says, and their ports.
var defaultPorts = map[string]string{"file": "", "ftp": "21", "http": "80", "https": "443", "ws": "80", "wss": "443"}

// normalize returns a URI with its scheme and host in lower case, without escapes, and without . and
// .. in its path. bare is the same without what does not name the resource: a fragment, and for a
// file the query. Escapes that were escaped themselves could hide dots, so they are an error. So are
// spellings that the URL standard takes for another URI.
func normalize(uri string) (plain, bare string, err error) {
	once, err := url.PathUnescape(uri)
	if err != nil || strings.ContainsAny(once, "\\\x00") || strings.ContainsFunc(uri, blank) || strings.Trim(uri, " ") != uri ||
		strings.Contains(uri, " ?") || strings.Contains(uri, " #") {
		return "", "", errSpelling
	}
	if twice, err := url.PathUnescape(once); err == nil && twice != once {
		return "", "", errSpelling
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme == "" || !unambiguous(u, uri[len(u.Scheme)+1:]) {
		return "", "", errSpelling
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
	if plain == ".." || strings.HasPrefix(plain, "../") { // it leads out of nowhere
		return "", "", errSpelling
	}
	out += plain
	bare = out
	query, _ := url.PathUnescape(u.RawQuery)
	if strings.Contains(query, "/..") || strings.Contains(u.Fragment, "/..") { // of a path, for a server that knows no query
		return "", "", errSpelling
	}
	if query != "" {
		if out += "?" + query; u.Scheme != "file" {
			bare = out
		}
	}
	if u.Fragment != "" {
		out += "#" + u.Fragment
	}
	return out, bare, nil
}

// blank reports whether r is white space that parsers drop; a space inside a URI is an escape left out.
func blank(r rune) bool {
	return r != ' ' && (unicode.IsSpace(r) || unicode.IsControl(r) || r == '\ufeff')
}

var drive = regexp.MustCompile(`^/*[A-Za-z]\|`)

// unambiguous reports whether the URL standard takes a URI as it is written, apart from escapes,
// capitals and the dots and slashes of its path. rest is the URI after scheme and colon.
func unambiguous(u *url.URL, rest string) bool {
	port, known := defaultPorts[u.Scheme]
	if !known {
		return true
	}
	host := u.Hostname()
	if u.Scheme == "file" { // file:/x is file:///x, as is file://localhost/x
		return strings.HasPrefix(rest, "//") && u.Host == "" && u.User == nil && !drive.MatchString(u.Path)
	}
	if !strings.HasPrefix(rest, "//") || host == "" || u.User != nil || strings.HasSuffix(u.Host, ":") || strings.HasSuffix(host, ".") {
		return false
	}
	if p := u.Port(); p != "" && (p == port || p[0] == '0') {
		return false
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if strings.Contains(host, ":") || last[0] >= '0' && last[0] <= '9' { // an address, such as 127.1 or 0x7f000001 for 127.0.0.1
		at, err := netip.ParseAddr(strings.ToLower(host))
		return err == nil && at.String() == strings.ToLower(host)
	}
	return true
}

var (
	wild          = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|\*+|\?`)
	literalScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	barePercent   = regexp.MustCompile(`%([^0-9A-Fa-f]|[0-9A-Fa-f][^0-9A-Fa-f]|.?$)`)
	escape        = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// comparesAll reports whether a glob on resources is written as names writes URIs. One that is not
// would miss some, or all.
func comparesAll(glob string) bool {
	if escape.MatchString(glob) {
		return false
	}
	scheme, rest, ok := strings.Cut(glob, "://")
	var schemes []string
	switch literal := literalScheme.FindString(glob); {
	case literal != "" && (!ok || len(literal) == len(scheme)+1):
		schemes, rest = []string{strings.TrimSuffix(literal, ":")}, glob[len(literal):]
	case ok && wild.MatchString(scheme) && !strings.Contains(scheme, "/"):
		schemes, rest = []string{"https", "file", "x"}, "//"+rest
	default:
		return true
	}
	for _, scheme := range schemes {
		for _, fill := range []string{"x", ""} {
			uri := scheme + ":" + barePercent.ReplaceAllString(wild.ReplaceAllString(rest, fill), "x")
			plain, _, err := normalize(uri)
			_, known := defaultPorts[strings.ToLower(scheme)]
			if err == nil && (plain == uri || len(schemes) == 1 && !known && strings.HasPrefix(plain, scheme) && strings.EqualFold(plain, uri)) {
				return true // hosts of other schemes may be names with capitals
			}
		}
	}
	return false
}
