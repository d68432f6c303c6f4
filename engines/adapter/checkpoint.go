package adapter

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"enginebroker/engines/artifact"
	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// BadArtifact is the refusal of an artifact that the engine cannot open.
func BadArtifact(format string, args ...any) *matrix.StartFailure {
	return &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: fmt.Sprintf(format, args...)}
}

// Checkpoint is a directory of safetensors as a Python engine opens it.
type Checkpoint struct {
	Files  []string // of weights, absolute
	Vision bool     // it has a vision tower
}

// OpenSafetensors finds the weight files of an artifact and refuses what cannot be one, before minutes are spent on a start.
// engine is its name, for the message.
func OpenSafetensors(a matrix.Artifact, engine string) (Checkpoint, error) {
	var c Checkpoint
	bad := func(format string, args ...any) (Checkpoint, error) { return c, BadArtifact(format, args...) }
	if a.Path == "" {
		return bad("%s has no local path", a.ID)
	}
	if a.Container != "" && a.Container != "safetensors" {
		return bad("%s opens safetensors here, and %s is %s", engine, a.ID, a.Container)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		return bad("%v", err)
	}
	if !info.IsDir() {
		return bad("%s is a file: %s opens the directory that holds config.json and the weights", a.Path, engine)
	}
	c.Files = listed(a, ".safetensors")
	if len(c.Files) == 0 {
		return bad("%s holds no *.safetensors", a.Path)
	}
	for _, f := range c.Files {
		if _, err := os.Stat(f); err != nil {
			return bad("%v", err)
		}
	}
	var config struct {
		Vision json.RawMessage `json:"vision_config"`
	}
	path := filepath.Join(a.Path, "config.json")
	b, err := regular.ReadFile(path, artifact.MaxConfig)
	if err != nil {
		return bad("%v", err)
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return bad("%s: %v", path, err)
	}
	c.Vision = len(config.Vision) > 0 && string(config.Vision) != "null"
	return c, nil
}

// OpenGGUF finds the one GGUF file of an artifact: its path, or the only such file there.
func OpenGGUF(a matrix.Artifact) (string, error) {
	if a.Path == "" {
		return "", BadArtifact("%s has no local path", a.ID)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		return "", BadArtifact("%v", err)
	}
	if !info.IsDir() {
		return a.Path, nil
	}
	files := listed(a, ".gguf")
	switch len(files) {
	case 0:
		return "", BadArtifact("%s holds no *.gguf", a.Path)
	case 1:
		return files[0], nil
	}
	return "", BadArtifact("%s holds %d GGUF files: name one", a.Path, len(files))
}

// listed are the files of an artifact's directory that end so: those it lists, else those that lie there.
func listed(a matrix.Artifact, suffix string) []string {
	var files []string
	for _, f := range a.Files {
		if strings.HasSuffix(f.Path, suffix) {
			files = append(files, filepath.Join(a.Path, f.Path))
		}
	}
	if len(files) == 0 {
		there, _ := fs.Glob(os.DirFS(a.Path), "*"+suffix) // no match is no file
		for _, name := range there {
			files = append(files, filepath.Join(a.Path, name))
		}
	}
	return files
}
