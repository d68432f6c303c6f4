// Package artifact says what a model's weight files really hold.
//
// It reads headers, never weights: a checkpoint of any size is described in bounded memory (64 MiB) and every file of it is
// hashed. What a file claims of itself — a file type, a configuration, the name of its repository — stands beside what its
// tensors are, and a contradiction is listed, because names lie and comparisons are made from tensors.
//
// An artifact is refused whole or described whole. A header that lies about its file, a file shorter than its header says, an
// unfinished download, a file that cannot be read: each is a *Refusal or a *HeaderError that names the file, the field, the
// offset and what to do. No part of a refused artifact is described.
//
// The way it works:
//
//  1. Locator      → files: a path, a Hugging Face cache snapshot, or one of several split parts (locate.go)
//  2. headers      → tensors: safetensors.go and gguf.go, one pass, nothing kept but sums (census.go)
//  3. configs      → claims (config.go)
//  4. census       → quantization descriptor, contradictions (descriptor.go)
//  5. files        → sha256 of each, in parallel, cached by (device, inode, size, mtime, ctime) (sums.go)
package artifact

import (
	"context"
	"fmt"
	"runtime"

	"enginebroker/matrix"
)

// Options of Open. The zero value reads headers and hashes everything without a cache.
type Options struct {
	// HubDir is the hub directory of the Hugging Face cache that hf: locators are resolved in; see HubDir.
	HubDir string
	// Sums keeps hashes between calls; nil hashes every file anew.
	Sums *Sums
	// Rehash reads every file again, whatever Sums knows of it.
	Rehash bool
	// HeadersOnly leaves hashes out: the manifest has no SHA256 and its files have none.
	HeadersOnly bool
	// Workers bounds parallel hashing; 0 means one for each core.
	Workers int
	// Pause is called between two reads of hashing and may wait; nil: never. One worker hashes then, so that nothing is read
	// meanwhile.
	Pause func(ctx context.Context) error
}

// Report is what inspection shows beside the manifest.
type Report struct {
	Locator  string           `json:"locator"`
	Root     string           `json:"root"`               // directory that file paths are relative to; of a directory, links resolved
	Links    []string         `json:"links,omitempty"`    // symbolic links on the way to Root, each "from -> to"
	Revision string           `json:"revision,omitempty"` // commit that a hf: locator resolved to
	Kind     Kind             `json:"kind"`
	Methods  map[string]Share `json:"methods"` // by storage method of a module: nvfp4, fp8, bf16, q4_k …
	Rows     []Row            `json:"rows,omitempty"`
	Cached   int              `json:"files_from_cache"` // files whose hash came from the cache
	Hashed   int              `json:"files_hashed"`     // files read and hashed now
}

// Kind says what the files are for.
type Kind string

const (
	KindModel   Kind = "model"
	KindMMProj  Kind = "mmproj"  // a vision or audio projector: no language model
	KindAdapter Kind = "adapter" // a LoRA
	KindVocab   Kind = "vocab"   // a GGUF with a tokenizer and no weights
)

// Share is what one storage method holds.
type Share struct {
	Tensors    int64 `json:"tensors"`
	Parameters int64 `json:"parameters"`
	Bytes      int64 `json:"bytes"`
}

// Row is one further detail and where it was read.
type Row struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Where string `json:"where"`
}

// Open finds, reads and hashes an artifact. The error is a *Refusal, a *HeaderError or of the context.
func Open(ctx context.Context, loc Locator, opt Options) (matrix.Manifest, *Report, error) {
	switch {
	case opt.Pause != nil:
		opt.Workers = 1
	case opt.Workers <= 0:
		opt.Workers = runtime.GOMAXPROCS(0)
	}
	found, err := locate(loc, opt.HubDir)
	if err != nil {
		return matrix.Manifest{}, nil, err
	}
	return describe(ctx, found, opt)
}

// Refusal says why an artifact is not described at all.
type Refusal struct {
	Code    Code
	Path    string
	Message string
	Missing matrix.Opt[int64] // bytes that should be there and are not
	Owner   matrix.Opt[int]   // uid that owns an unreadable file
	Fix     string            // what to run or to do
}

func (r *Refusal) Error() string {
	s := fmt.Sprintf("%s: %s", r.Path, r.Message)
	if n, ok := r.Missing.Get(); ok {
		s += fmt.Sprintf(" (%d bytes missing)", n)
	}
	if r.Fix != "" {
		s += ": " + r.Fix
	}
	return s
}

// Code classes refusals.
type Code string

const (
	NotFound   Code = "not_found"
	Truncated  Code = "truncated"  // shorter than its own header says
	Incomplete Code = "incomplete" // a download was left unfinished, or a listed part is absent
	Unreadable Code = "unreadable"
	LinkLoop   Code = "link_loop"
	Replaced   Code = "replaced" // changed while it was read
	Corrupt    Code = "corrupt"  // the content is not what its name in the cache says
	Ambiguous  Code = "ambiguous"
	TooMany    Code = "too_many" // more files or tensors than a checkpoint has
)

// HeaderError is a header that cannot be true, or is of a kind that is refused.
type HeaderError struct {
	Path    string
	Field   string // tensor or key, as far as it was read
	Offset  int64  // byte offset in the file
	Message string
}

func (e *HeaderError) Error() string {
	s := fmt.Sprintf("%s: offset %d", e.Path, e.Offset)
	if e.Field != "" {
		s += ": " + e.Field
	}
	return s + ": " + e.Message
}
