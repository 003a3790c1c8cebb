package preview

import (
	"cmp"
	"strings"

	"golang.org/x/net/html"
)

// htmlSigns are the signs of a page or a piece of one near its start.
var htmlSigns = []string{"<!doctype html", "<html", "<head>", "<body", "<div", "<table", "<p>", "<p ", "<ul"}

// readHTML reads the headings and the text of a page. The numbers of lines would be those of the text,
// not of the page, so there are none.
func readHTML(f *findings, page string) bool {
	f.kind = HTML
	lines, links := htmlText(page)
	f.totals = append(f.totals, plural(len(lines), "line")+" of text, tags left out")
	heads := 0
	for i, l := range lines {
		if isHeading(l) {
			if heads++; heads < 60 {
				f.own(i, clip(l, narrow), 7/(1+float64(heads)/10))
			}
		} else {
			f.own(i, clip(l, wide), max(lineWorth/(1+float64(i)/8), 5/(1+float64(len(lines)-i)/4)))
		}
	}
	f.totals = append(f.totals, plural(heads, "heading"), plural(links, "link"))
	return true
}

// htmlText returns the lines of the text of a page, with # before headings, and the number of its links.
func htmlText(page string) (lines []string, links int) {
	z := html.NewTokenizer(strings.NewReader(page))
	var line strings.Builder
	flush := func() {
		if t := strings.Join(strings.Fields(line.String()), " "); strings.Trim(t, "#•| ") != "" {
			lines = append(lines, t)
		}
		line.Reset()
	}
	skip := "" // the hidden element around
	for token := z.Next(); token != html.ErrorToken; token = z.Next() {
		if token == html.TextToken && skip == "" {
			line.Write(z.Text())
		}
		if token == html.TextToken || token == html.CommentToken || token == html.DoctypeToken {
			continue
		}
		raw, _ := z.TagName()
		name := string(raw)
		if blocks[name] {
			flush()
		}
		switch {
		case token == html.EndTagToken:
			if name == skip {
				skip = ""
			}
		case hidden[name] && token == html.StartTagToken:
			skip = cmp.Or(skip, name)
		case len(name) == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6':
			line.WriteString(strings.Repeat("#", int(name[1]-'0')) + " ")
		case name == "a" && token != html.EndTagToken:
			links++
		case name == "li":
			line.WriteString("• ")
		case name == "td" || name == "th":
			line.WriteString(" | ")
		}
	}
	flush()
	return lines, links
}

// blocks are elements that begin a line of their own.
var blocks = map[string]bool{
	"p": true, "div": true, "li": true, "tr": true, "br": true, "section": true, "article": true, "table": true, "ul": true, "ol": true,
	"h1": true, "h2": true, "h3": true, "h4": true, "h5": true, "h6": true, "pre": true, "blockquote": true, "header": true, "footer": true,
	"nav": true, "main": true, "title": true, "dt": true, "dd": true, "form": true, "option": true,
}

// hidden are elements with text that browsers don't show.
var hidden = map[string]bool{"script": true, "style": true, "noscript": true, "template": true, "svg": true}
