package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// At says where a field stands in a file that was read without a fault: FILE:LINE:COLUMN of it, or of the innermost thing
// around it that is there. A field is written as in messages: artifacts[0].engines.vllm.status. Keys may hold dots.
func At(path string, data []byte, field string) string {
	f, err := parser.ParseBytes(data, 0)
	if err != nil || len(f.Docs) == 0 {
		return path
	}
	node, at := f.Docs[0].Body, ""
	for field != "" {
		next, rest := inside(node, field)
		if next.key == nil {
			break
		}
		if t := next.key.GetToken(); t != nil && t.Position != nil {
			at = fmt.Sprintf(":%d:%d", t.Position.Line, t.Position.Column)
		}
		node, field = next.value, rest
	}
	return path + at
}

// member is what a field names in a mapping or list.
type member struct{ key, value ast.Node }

// inside finds the member of a node whose key is the longest beginning of a field, and what is left of the field.
func inside(node ast.Node, field string) (found member, rest string) {
	switch n := node.(type) {
	case *ast.MappingNode:
		best := -1
		for _, v := range n.Values {
			key := v.Key.GetToken().Value
			after, ok := strings.CutPrefix(field, key)
			if ok && len(key) > best && (after == "" || after[0] == '.' || after[0] == '[') {
				found, rest, best = member{v.Key, v.Value}, strings.TrimPrefix(after, "."), len(key)
			}
		}
	case *ast.MappingValueNode:
		return inside(&ast.MappingNode{Values: []*ast.MappingValueNode{n}}, field)
	case *ast.SequenceNode:
		index, after, ok := strings.Cut(strings.TrimPrefix(field, "["), "]")
		if i, err := strconv.Atoi(index); ok && err == nil && i >= 0 && i < len(n.Values) {
			return member{n.Values[i], n.Values[i]}, strings.TrimPrefix(after, ".")
		}
	}
	return found, rest
}

// Located puts the file, and the place of the field that it begins with, before a fault.
func Located(path string, data []byte, fault error) error {
	field, _, _ := strings.Cut(fault.Error(), ": ")
	return fmt.Errorf("%s: %w", At(path, data, field), fault)
}
