package artifact

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// HubDir returns the hub directory of the Hugging Face cache as huggingface_hub finds it: HF_HUB_CACHE,
// HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, HOME/.cache/huggingface/hub.
// It is empty where none of the variables is set.
func HubDir(getenv func(string) string) string {
	for _, v := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if d := getenv(v); d != "" {
			return d
		}
	}
	for _, v := range [][2]string{{"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}, {"HOME", ".cache/huggingface/hub"}} {
		if d := getenv(v[0]); d != "" {
			return filepath.Join(d, v[1])
		}
	}
	return ""
}

// unfinished refuses what a download left below dir, which need not be there.
func unfinished(dir string) error {
	return filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return unreadable(p, err)
		case strings.HasSuffix(p, ".incomplete"):
			return incomplete(p)
		}
		return nil
	})
}

var commitName = regexp.MustCompile(`^[0-9a-f]{7,40}$`)

// snapshot finds a repository's snapshot directory through the cache's own refs. The network is never asked.
func snapshot(loc Locator, hub string) (dir, revision string, err error) {
	if hub == "" {
		return "", "", &Refusal{Code: NotFound, Path: loc.String(), Message: "no Hugging Face cache is known", Fix: "set HF_HOME or HF_HUB_CACHE"}
	}
	repo := filepath.Join(hub, "models--"+strings.ReplaceAll(loc.Repository, "/", "--"))
	fetch := fmt.Sprintf("hf download %s --revision %s", loc.Repository, loc.Revision)
	if _, err := os.Stat(repo); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", "", &Refusal{Code: NotFound, Path: repo, Message: "this repository is not in the cache", Fix: fetch}
		}
		return "", "", unreadable(repo, err)
	}
	if err := unfinished(filepath.Join(repo, "blobs")); err != nil {
		return "", "", err
	}
	var have []string
	entries, err := os.ReadDir(filepath.Join(repo, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", unreadable(repo, err)
	}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	commit := ""
	if b, err := readSmall(filepath.Join(repo, "refs", filepath.FromSlash(loc.Revision)), 256); err == nil {
		commit = strings.TrimSpace(string(b))
	} else if commitName.MatchString(loc.Revision) {
		for _, h := range have {
			if strings.HasPrefix(h, loc.Revision) {
				if commit != "" {
					return "", "", &Refusal{Code: Ambiguous, Path: repo, Message: "several snapshots begin with " + loc.Revision, Fix: "write the whole commit"}
				}
				commit = h
			}
		}
	}
	if commit == "" || !slices.Contains(have, commit) {
		return "", "", &Refusal{Code: NotFound, Path: repo, Message: fmt.Sprintf("revision %q is not in the cache; it holds %s", loc.Revision, cmp.Or(strings.Join(have, ", "), "no snapshot")),
			Fix: fetch + " (a revision can vanish upstream: then name one that is here)"}
	}
	return filepath.Join(repo, "snapshots", commit), commit, nil
}
