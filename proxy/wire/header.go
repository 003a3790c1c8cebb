package wire

import (
	"encoding/base64"
	"strings"
)

// Header values in the form =?base64?…?= stand for a text that a header can't carry as it is.
const headerPrefix, headerSuffix = "=?base64?", "?="

// EncodeHeader returns the value of a header Mcp-Name or Mcp-Param-* that stands for text: text
// itself, or its base64 form if text is more than visible ASCII or looks like the base64 form.
func EncodeHeader(text string) string {
	plain := text == strings.TrimSpace(text) && !strings.HasPrefix(text, headerPrefix)
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] >= 0x20 && text[i] < 0x7f
	}
	if plain {
		return text
	}
	return headerPrefix + base64.StdEncoding.EncodeToString([]byte(text)) + headerSuffix
}

// DecodeHeader returns the text that a header value stands for. ok is false for malformed base64.
func DecodeHeader(value string) (text string, ok bool) {
	encoded, ok := strings.CutPrefix(value, headerPrefix)
	if !ok {
		return value, true
	}
	if encoded, ok = strings.CutSuffix(encoded, headerSuffix); !ok {
		return value, true
	}
	b, err := base64.StdEncoding.DecodeString(encoded)
	return string(b), err == nil
}
