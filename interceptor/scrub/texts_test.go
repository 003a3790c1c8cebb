package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"iter"
	"strings"
)

// chunks returns the parts of s of n bytes.
func chunks(s string, n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(s) > n && yield(s[:n]) {
			s = s[n:]
		}
		yield(s)
	}
}

// largeTexts returns texts of n bytes, each of which is expensive in its own way.
func largeTexts(n int) map[string]string {
	fill := func(unit string) string { return strings.Repeat(unit, n/len(unit)) }
	return map[string]string{
		"word": "key=" + token(1, "", n), "word of one letter": "api_key=" + fill("x"), "word with digits": "secret: " + fill("a1b2c3d4"),
		"base64":           "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(token(2, "", n/2))),
		"printable base64": base64.StdEncoding.EncodeToString([]byte(fill("some text of words "))),
		"hex":              hex.EncodeToString([]byte(fill("some text "))), "percent": fill("%41"), "escapes": fill(`\n\"`),
		"jwt": "ey" + token(3, "", n/2) + ".ey" + token(4, "", n/2), "pem": "-----BEGIN PRIVATE KEY-----\n" + fill(token(5, "", 64)+"\n") + "-----END PRIVATE KEY-----",
		"many keys": fill("api_key = " + token(6, "", 20) + "\n"), "assignments": fill("key=a "), "curl": fill("curl -H x\n"),
		"table": "id,password\n" + fill("1,"+token(7, "", 12)+"\n"), "headers": fill("id,token,secret\n"), "pairs": fill("name: DB_PASSWORD\nvalue: a1b2c3d4\n"),
		"entities": fill("&#65;"), "named entities": fill("&amp;"), "quoted-printable": fill("token=3Da "), "soft breaks": fill("a=\n"), "signs": fill("="), "quotes": fill(`"`),
		"zeros": fill("a\x00"), "heads of gzip": fill("H4sIAAAAAAAAA0tMSk5JTUvPyMwCAA "), "nested base64": base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(fill("some text of "))))),
		"JSON table": `{"columns":["name","password"],"rows":[` + fill(`["ann","s3cr3t-x9"],`) + `["a","b"]]}`, "deep": fill("[") + fill("]"), "secrets": fill(github(50) + " "),
		"bytes": fill("103, "), "hexadecimal bytes": fill("67:"), "short lists": fill("12, 34, x "), "long numbers": fill("1700000000, "), "dump": fill("00000000  67 68 70 5f 67 68 70 5f  67 68 70 5f 67 68 70 5f  |ghp_ghp_ghp_ghp_|\n"),
		"zero width": fill("\u200b"), "url": fill("https://a:b@c?token=x&"), "block": fill("token: |\n  abcdefgh\n"),
	}
}
