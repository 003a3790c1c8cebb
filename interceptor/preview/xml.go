package preview

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

// readMarkup reads HTML and XML.
func readMarkup(f *findings) bool {
	start := strings.IndexByte(f.text, '<')
	if start < 0 || start > 1000 || strings.TrimSpace(f.text[:start]) != "" && (f.text[start-1] != '\n' || share(f.sample, func(l string) bool { return strings.Contains(l, "<") }) < 0.4) {
		return false
	}
	page := f.text[start:]
	if containsAny(strings.ToLower(page[:min(len(page), 2000)]), htmlSigns) && !strings.HasPrefix(page, "<?xml") {
		return readHTML(f, page)
	}
	line := strings.Count(f.text[:start], "\n")
	elements, items, strict := parseXML(page, line, true)
	f.jq = strict && len(page) <= extract.MaxConvert
	if !strict {
		var ok bool
		if elements, items, ok = parseXML(page, line, false); !ok {
			return false
		}
	}
	f.kind = XML
	slices.SortStableFunc(elements, func(a, b *xmlElements) int { return b.n - a.n })
	var parts []string
	for _, e := range elements {
		_, name, nested := strings.Cut(e.path, "/")
		if !nested {
			f.totals = append(f.totals, "root "+clip(e.path, 60))
			if e.path == "testsuites" || e.path == "testsuite" {
				f.kind = Tests
			}
			continue
		}
		parts = append(parts, fmt.Sprintf("%s ×%s", clip(name, 60), group(e.n)))
		if first := e.first; strings.HasSuffix(name, "failure") || strings.HasSuffix(name, "error") {
			f.line(first-1, "", wide, 9)
			f.line(first, "", wide, 9)
			f.line(first+1, "", wide, 5)
		}
	}
	f.fact(9, "elements: ", parts, nil)
	if items != nil {
		if n := len(items.lines); int(items.lines[n-1]-items.lines[0]) < n-1 { // several in a line
			items.show = func(i int, note string, worth float64) {
				at := items.at[i]
				f.own(len(f.lines)+i, fmt.Sprintf("%s[%d]:%s %s", items.noun, i, note, clip(page[at.from:at.to], narrow)), worth)
			}
		}
		items.tell(f)
	}
	f.ends(1)
	return true
}

// xmlElements are the elements of one path. If they may be the items, they are entries, with their attributes and
// children as fields.
type xmlElements struct {
	entries
	path     string
	of       *xmlElements            // those around them
	inner    map[string]*xmlElements // those in them, by name
	n, first int                     // their number, and the line of the first one
	read     bool                    // they may be the items
	at       []span                  // in the text, of entries
}

// maxPaths is how many paths a text may have.
const maxPaths = 20_000

// parseXML reads an XML text, of which the first line has the index line. It returns its elements by their paths, and
// those of the path that repeats first. ok is false if the text is not XML or nested too deeply. If it is not read
// strictly, it may break some rules, such as with entities that are not defined.
func parseXML(text string, line int, strictly bool) (elements []*xmlElements, items *xmlElements, ok bool) {
	var source io.Reader = strings.NewReader(text)
	if end := strings.Index(text, "?>") + len("?>"); !strictly && strings.HasPrefix(text, "<?xml ") && end >= len("?>") {
		// The decoder refuses a declaration of version 1.1, such as those of Jenkins.
		source = io.MultiReader(strings.NewReader(strings.Repeat(" ", end)), strings.NewReader(text[end:]))
	}
	d := xml.NewDecoder(source)
	d.Strict = strictly
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil } // the text is UTF-8
	open := []*xmlElements{{}}
	for {
		before, _ := d.InputPos()
		from := d.InputOffset()
		token, err := d.RawToken()
		if err != nil {
			return elements, around(items), errors.Is(err, io.EOF) && len(open) == 1 && len(elements) > 0
		}
		in := open[len(open)-1]
		switch t := token.(type) {
		case xml.StartElement:
			name := xmlName(t.Name)
			e := in.inner[name]
			if e == nil {
				path := strings.TrimPrefix(in.path+"/"+name, "/")
				if len(path) > 1<<10 || len(open) > 200 || len(elements) > maxPaths { // each path takes its length
					return nil, nil, false
				}
				if in.inner == nil {
					in.inner = map[string]*xmlElements{}
				}
				e = &xmlElements{path: path, of: in, entries: entries{noun: name}, first: line + before - 1, read: items == nil}
				in.inner[name], elements = e, append(elements, e)
			} else if items == nil && len(open) > 1 {
				items = e
				most := strings.Count(text[from:], "<"+name)
				e.lines, e.at = slices.Grow(e.lines, most), slices.Grow(e.at, most)
				for _, other := range elements {
					other.read = strings.HasPrefix(e.path+"/", other.path+"/")
				}
			}
			if e.n++; e.read {
				e.begin(line + before - 1)
				e.at = append(e.at, span{uint32(from), 0}) // #nosec G115: a text has less than 2 GiB
			}
			for _, a := range t.Attr {
				if e.read {
					e.set(xmlName(a.Name), a.Value)
				}
				if in.read {
					in.set(name+"@"+xmlName(a.Name), a.Value)
				}
			}
			open = append(open, e)
		case xml.CharData:
			if outer := open[max(len(open)-2, 0)]; in.read || outer.read {
				if said := strings.TrimSpace(string(t)); said != "" {
					if in.read {
						in.set("#text", said)
					}
					if outer.read {
						outer.set(in.noun, said)
					}
				}
			}
		case xml.EndElement:
			if len(open) == 1 || in.noun != xmlName(t.Name) {
				return nil, nil, false
			}
			if open = open[:len(open)-1]; in.read {
				in.at[len(in.at)-1].to = uint32(d.InputOffset()) // #nosec G115: a text has less than 2 GiB
			}
		}
	}
}

// around returns elements, or those around them of which each has some: an item may have several of the elements that
// repeat first, such as the categories of an RSS feed.
func around(e *xmlElements) *xmlElements {
	for e != nil {
		if outer := e.of; outer.of == nil || outer.of.of == nil || outer.n < 2 || outer.n*3 < e.n {
			break
		}
		e = e.of
	}
	return e
}

// xmlName returns a name as it is written.
func xmlName(n xml.Name) string { return strings.TrimPrefix(n.Space+":"+n.Local, ":") }
