package external

import "bytes"

// plainJSON replaces the bare words Infinity, -Infinity and NaN, which Python writes and JSON does not have, by null.
// Strings are left alone.
func plainJSON(data []byte) []byte {
	words := [][]byte{[]byte("-Infinity"), []byte("Infinity"), []byte("NaN")}
	if !bytes.Contains(data, words[1]) && !bytes.Contains(data, words[2]) {
		return data
	}
	out := make([]byte, 0, len(data))
	inString := false
next:
	for i := 0; i < len(data); i++ {
		c := data[i]
		if inString {
			out = append(out, c)
			if c == '\\' && i+1 < len(data) {
				i++
				out = append(out, data[i])
			}
			inString = c != '"'
			continue
		}
		for _, w := range words {
			if bytes.HasPrefix(data[i:], w) {
				out = append(out, "null"...)
				i += len(w) - 1
				continue next
			}
		}
		inString = c == '"'
		out = append(out, c)
	}
	return out
}
