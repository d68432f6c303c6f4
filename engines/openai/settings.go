package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// CheckSettings checks settings against a plugin's schema and returns every fault, ordered by field. A map setting is
// written name.KEY; a list is comma-separated, or a JSON array where an entry holds a comma.
func CheckSettings(schema []matrix.Setting, s engines.Settings) []engines.FieldError {
	var faults []engines.FieldError
	byName := map[string]matrix.Setting{}
	for _, x := range schema {
		byName[x.Name] = x
		if x.Required && s[x.Name] == "" {
			faults = append(faults, engines.FieldError{Field: x.Name, Message: "missing", Fix: x.Help})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		x, ok := byName[name]
		if base, key, dotted := strings.Cut(name, "."); !ok && dotted && key != "" && byName[base].Type == "map" {
			continue
		}
		if !ok {
			faults = append(faults, engines.FieldError{Field: name, Message: "no such setting", Fix: "known are " + strings.Join(names(schema), ", ")})
			continue
		}
		if msg := fault(x, s[name]); msg != "" {
			faults = append(faults, engines.FieldError{Field: name, Message: msg, Fix: x.Help})
		}
	}
	slices.SortStableFunc(faults, func(a, b engines.FieldError) int { return strings.Compare(a.Field, b.Field) })
	return faults
}

func names(schema []matrix.Setting) []string {
	var list []string
	for _, x := range schema {
		if x.Type == "map" {
			list = append(list, x.Name+".NAME")
			continue
		}
		list = append(list, x.Name)
	}
	return list
}

func fault(x matrix.Setting, v string) string {
	var err error
	switch x.Type {
	case "int":
		_, err = strconv.Atoi(v)
	case "duration":
		var d time.Duration
		if d, err = time.ParseDuration(v); err == nil && d <= 0 {
			return fmt.Sprintf("%q is not a positive duration", v)
		}
	case "bool":
		_, err = strconv.ParseBool(v)
	case "list":
		_, err = parseList(v)
	case "path":
		if v == "" {
			return "an empty path"
		}
	case "map":
		return "a map is written name by name: " + x.Name + ".NAME"
	}
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not a value of type %s", v, x.Type)
	case len(x.Values) > 0 && !slices.Contains(x.Values, v):
		return fmt.Sprintf("%q is none of %s", v, strings.Join(x.Values, ", "))
	}
	return ""
}

// Values reads settings that CheckSettings found no fault in, with the schema's defaults.
type Values struct {
	schema   []matrix.Setting
	settings engines.Settings
}

// NewValues pairs settings with their schema.
func NewValues(schema []matrix.Setting, s engines.Settings) Values { return Values{schema, s} }

// Text is a setting as written, or its default. Asking for a setting the schema lacks is a bug of the adapter and panics.
func (v Values) Text(name string) string {
	i := slices.IndexFunc(v.schema, func(x matrix.Setting) bool { return x.Name == name })
	if i < 0 {
		panic("openai: no setting " + name + " in the schema")
	}
	if s := v.settings[name]; s != "" {
		return s
	}
	return v.schema[i].Default
}

// Path is an absolute path, empty where none is set.
func (v Values) Path(name string) string {
	p := v.Text(name)
	if abs, err := filepath.Abs(p); p != "" && err == nil {
		return abs
	}
	return p
}

// Int is a whole number, absent where none is set.
func (v Values) Int(name string) matrix.Opt[int] {
	if n, err := strconv.Atoi(v.Text(name)); err == nil {
		return matrix.Some(n)
	}
	return matrix.Opt[int]{}
}

// Duration is a duration, 0 where none is set.
func (v Values) Duration(name string) time.Duration {
	d, _ := time.ParseDuration(v.Text(name)) // checked before; "" is 0
	return d
}

// Bool is a truth value, false where none is set.
func (v Values) Bool(name string) bool {
	b, _ := strconv.ParseBool(v.Text(name))
	return b
}

// List is a list.
func (v Values) List(name string) []string {
	l, _ := parseList(v.Text(name))
	return l
}

// Map is the map setting of that name: the values by key.
func (v Values) Map(name string) map[string]string {
	m := map[string]string{}
	for k, s := range v.settings {
		if key, ok := strings.CutPrefix(k, name+"."); ok {
			m[key] = s
		}
	}
	return m
}

func parseList(s string) ([]string, error) {
	if strings.HasPrefix(s, "[") {
		var list []string
		err := json.Unmarshal([]byte(s), &list)
		return list, err
	}
	if s == "" {
		return nil, nil
	}
	return strings.Split(s, ","), nil
}

// CheckURL says what is wrong with the base URL of a server to attach to; empty: nothing.
func CheckURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Sprintf("%q is not a URL like http://127.0.0.1:8080", s)
	case u.Path != "" && u.Path != "/", u.RawQuery != "":
		return fmt.Sprintf("%q: give the server's base, without a path", s)
	}
	return ""
}
