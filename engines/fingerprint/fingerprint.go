// Package fingerprint says what is really running: which program, built how, with which libraries, packages and caches.
//
// A version string is what somebody wrote; a symbolic link is where somebody pointed; both have sent whole campaigns against
// the wrong engine. So identity is read from the process tree itself — the files it has mapped and their sha256, the
// environment it imports from, the backend library it picked at run time — and each fact says where it was read and whether it
// was observed or only claimed. What was not recorded is not equal.
//
// The way it works:
//
//  1. processes  → the main program (behind a loader too), its link chain, argv and environment without secrets
//  2. mappings   → every executable file object, hashed; compute backends; files that were deleted under the process
//  3. disk       → Python packages and where they came from, CMake configuration, compile caches, driver
//  4. Print      → facts, and Build: one digest over objects, build configuration and packages, independent of paths
//
// Everything is read below a proc root that tests replace. Nothing is started and no process is asked.
package fingerprint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Names of facts beside those of package matrix. A name ending in a dot is a prefix.
const (
	FactBinarySHA256 = "binary.sha256" // of the main program's file
	FactBinaryCode   = "binary.code"   // of its .text section: equal where only paths and ids inside the file differ
	FactBinaryLinks  = "binary.links"  // symbolic links on the way from the launch path, each "from -> to"
	FactLibrary      = "library"       // "name sha256" of one executable mapping, repeated
	FactDeleted      = "deleted"       // a mapped file that is no longer on disk, repeated
	FactHelper       = "helper"        // a shell or compiler of the tree, which is no part of the build, repeated
	FactPython       = "python"        // real path of the interpreter
	FactPrefix       = "python.prefix" // real path of the environment: two of one name differ here
	FactShadow       = "python.shadow" // a directory in the working directory that shadows a package
	FactPackages     = "packages"      // digest of the whole list of distributions
	FactPackage      = "package."      // + distribution: its version; + ".origin", ".commit", ".module": see python.go
	FactCMake        = "cmake."        // + key: build configuration, claimed by the build directory
	FactCMakeDigest  = "cmake"         // digest of those keys, paths left out
	FactSource       = "source"        // the source directory and whether it still exists
	FactFlag         = "flag."         // + flag: value on the command line of the main program
	FactEnv          = "env."          // + variable of the allow-list
	FactCache        = "cache."        // + name: path, private or shared, entries, hash
	FactDriver       = "driver"        // kernel driver
	FactCUDA         = "cuda."         // + library: version in its file name
	FactKernel       = "kernel."       // + name: a kernel or fusion named by the engine's log; adapters add these
	FactConfig       = "config."       // + name: configuration read back from the server; adapters add these
	FactWarning      = "warning"       // a disagreement inside one arm, repeated
)

// Sum gives the sha256 of a file, hex. A caching one makes identity cheap: (*artifact.Sums).Sum fits.
type Sum func(ctx context.Context, path string) (string, error)

// Options of Of.
type Options struct {
	Proc    string // proc root, "/proc" where empty
	PIDs    []int  // the server tree, root first
	Launch  string // path the program was started by, for the link chain; argv[0] where empty
	Sum     Sum    // plain sha256 where nil
	Private string // caches below this directory are private
}

// Print is the identity of a running tree.
type Print struct {
	Facts matrix.Facts
	Build string // build fingerprint, also the fact "build"
}

func observed(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed}
}

func claimed(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Claimed}
}

// Of reads the identity of a running process tree. Call it after the first token: a library that is mapped later changes the
// build, and is meant to. A process that cannot be read is an error, never a smaller identity.
func Of(ctx context.Context, opt Options) (Print, error) {
	if len(opt.PIDs) == 0 {
		return Print{}, errors.New("fingerprint: no process given")
	}
	if opt.Proc == "" {
		opt.Proc = "/proc"
	}
	if opt.Sum == nil {
		opt.Sum = plainSum
	}
	tree, err := readTree(opt.Proc, opt.PIDs)
	if err != nil {
		return Print{}, err
	}
	var facts matrix.Facts
	tree = slices.DeleteFunc(tree, func(p *process) bool {
		if p.helper() {
			facts = append(facts, observed(FactHelper, filepath.Base(p.program), p.dir))
		}
		return p.helper()
	})
	if len(tree) == 0 {
		return Print{}, fmt.Errorf("fingerprint: processes %v are shells and compilers only: give the server's own tree", opt.PIDs)
	}
	root := tree[0]
	objects, more, err := mapped(ctx, tree, opt.Private, opt.Sum)
	if err != nil {
		return Print{}, err
	}
	facts = append(facts, more...)
	binary, err := programFacts(ctx, root, opt)
	if err != nil {
		return Print{}, err
	}
	facts = append(facts, binary...)
	facts = append(facts, launchFacts(root)...)
	python, packages := pythonFacts(tree)
	facts = append(facts, python...)
	config, digest := buildConfiguration(root.real(root.program), root.inside)
	facts = append(facts, config...)
	facts = append(facts, driverFacts(opt.Proc, tree)...)
	caches, err := Caches(ctx, CacheOptions{Env: root.env, Root: root.root(), Private: opt.Private, Sum: opt.Sum})
	if err != nil {
		return Print{}, err
	}
	facts = append(facts, caches...)
	build, err := matrix.Digest(buildInput{objects, digest, packages})
	if err != nil {
		return Print{}, err
	}
	facts = append(facts, observed(matrix.FactBuild, build, fmt.Sprintf("%d executable mappings, build configuration, packages", len(objects))))
	return Print{Facts: sorted(facts), Build: build}, nil
}

// buildInput is what a build fingerprint covers (protocol §1): no path is in it, so that a moved copy is the same build.
type buildInput struct {
	Objects  [][2]string `json:"objects"` // file name and sha256, sorted
	CMake    string      `json:"cmake"`
	Packages string      `json:"packages"`
}

// sorted orders facts by name, keeping the order of equal names, and drops what several processes say alike, so that the same
// tree gives the same bytes.
func sorted(f matrix.Facts) matrix.Facts {
	slices.SortStableFunc(f, func(a, b matrix.Fact) int { return strings.Compare(a.Name, b.Name) })
	seen := map[matrix.Fact]bool{}
	return slices.DeleteFunc(f, func(x matrix.Fact) bool {
		x.Where = ""
		again := seen[x]
		seen[x] = true
		return again
	})
}

func plainSum(_ context.Context, path string) (string, error) {
	f, err := regular.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sumAll hashes in parallel, in order.
func sumAll(ctx context.Context, sum Sum, paths []string) ([]string, error) {
	out := make([]string, len(paths))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range paths {
		g.Go(func() (err error) {
			out[i], err = sum(ctx, p)
			return err
		})
	}
	return out, g.Wait()
}
