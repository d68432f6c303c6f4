package enginebroker_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pure are the rooms that own no clock, file or process: equal input gives equal output.
var pure = []string{"matrix", "matrix/stats", "matrix/negotiate", "matrix/schedule", "matrix/workload", "matrix/metrics", "matrix/gates", "matrix/verdict",
	"matrix/external", "matrix/vectors", "matrix/report", "engines"}

var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestPureRoomsOwnNoClockAndNoFile(t *testing.T) {
	for _, room := range pure {
		files, err := filepath.Glob(filepath.Join(room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no Go files (%v)", room, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				if p := strings.Trim(imp.Path.Value, `"`); p == "os" || strings.HasPrefix(p, "os/") || p == "syscall" || p == "math/rand" || p == "crypto/rand" {
					t.Errorf("%s imports %s: the room is pure", path, p)
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, sel.Sel.Name) {
					t.Errorf("%s: time.%s: the room owns no clock", set.Position(sel.Pos()), sel.Sel.Name)
				}
				return true
			})
		}
	}
}
