package matrix

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Canonical returns the canonical JSON of v (protocol §8, vector I01): object keys sorted by code point, no spaces,
// UTF-8 unescaped, integers only. A fractional number is an error: identities carry such values as strings.
func Canonical(v any) ([]byte, error) {
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	dec := json.NewDecoder(&raw)
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	if err := integersOnly(tree, "$"); err != nil {
		return nil, err
	}
	// Maps marshal with sorted keys, and byte order of UTF-8 is code point order.
	var out bytes.Buffer
	enc = json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(tree); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func integersOnly(v any, path string) error {
	switch x := v.(type) {
	case json.Number:
		if strings.ContainsAny(x.String(), ".eE") {
			return fmt.Errorf("canonical JSON: %s is %s: only integers are allowed, write a fraction as a string", path, x)
		}
	case map[string]any:
		for k, e := range x {
			if err := integersOnly(e, path+"."+k); err != nil {
				return err
			}
		}
	case []any:
		for i, e := range x {
			if err := integersOnly(e, path+"["+itoa(i)+"]"); err != nil {
				return err
			}
		}
	}
	return nil
}

// Digest returns the sha256 hex of the canonical JSON of v.
func Digest(v any) (string, error) {
	b, err := Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}
