package preview

import (
	"fmt"
	"strings"

	"golang.org/x/net/html"
)

// looksHTML reports whether a text is a page or a piece of one.
func looksHTML(t string) bool {
	if t[0] != '<' {
		return false
	}
	head := strings.ToLower(t[:min(len(t), 2000)])
	for _, sign := range []string{"<!doctype html", "<html", "<head>", "<body", "<div", "<table", "<p>", "<p ", "<ul"} {
		if strings.Contains(head, sign) {
			return true
		}
	}
	return false
}

// blocks are elements that begin a line of their own.
var blocks = map[string]bool{
	"p": true, "div": true, "li": true, "tr": true, "br": true, "section": true, "article": true, "table": true, "ul": true, "ol": true,
	"h1": true, "h2": true, "h3": true, "h4": true, "h5": true, "h6": true, "pre": true, "blockquote": true, "header": true, "footer": true,
	"nav": true, "main": true, "title": true, "dt": true, "dd": true, "form": true, "option": true,
}

// hidden are elements whose text no reader sees.
var hidden = map[string]bool{"script": true, "style": true, "noscript": true, "template": true, "svg": true}

// htmlText returns the text of a page by lines, headings marked with #.
func htmlText(page string) []string {
	z := html.NewTokenizer(strings.NewReader(page))
	var lines []string
	var line strings.Builder
	flush := func() {
		if t := strings.Join(strings.Fields(line.String()), " "); strings.Trim(t, "#•| ") != "" {
			lines = append(lines, t)
		}
		line.Reset()
	}
	skip := ""
	for {
		switch z.Next() {
		case html.ErrorToken:
			flush()
			return lines
		case html.TextToken:
			if skip == "" {
				line.Write(z.Text())
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			raw, _ := z.TagName()
			name := string(raw)
			if skip == "" && hidden[name] {
				skip = name
			}
			if blocks[name] {
				flush()
			}
			switch {
			case len(name) == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6':
				line.WriteString(strings.Repeat("#", int(name[1]-'0')) + " ")
			case name == "li":
				line.WriteString("• ")
			case name == "td" || name == "th":
				line.WriteString(" | ")
			}
		case html.EndTagToken:
			raw, _ := z.TagName()
			name := string(raw)
			if name == skip {
				skip = ""
			}
			if blocks[name] {
				flush()
			}
		}
	}
}

// makeHTML shows the headings and the text of the page from its start.
func makeHTML(d *doc, b *body) string {
	lines := htmlText(d.text)
	page := &doc{text: strings.Join(lines, "\n"), lines: lines}
	e := newExcerpt(page, b)
	room := b.left
	var heads []int
	for i, l := range lines {
		if isHeading(l) {
			heads = append(heads, i)
		}
	}
	e.head(2, room/4)
	for _, i := range spread(heads, room/12) {
		if b.left < room/3 {
			break
		}
		e.take(i, "")
	}
	e.misses = 0
	e.head(len(lines), b.left)
	n := len(e.shown)
	e.done()
	for i, part := range b.parts { // these numbers are of the text, not of the page
		_, b.parts[i], _ = strings.Cut(part, ": ")
	}
	return fmt.Sprintf("%d of %s of its text shown, tags left out", n, plural(len(lines), "line"))
}
