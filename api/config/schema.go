package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema is the file's JSON Schema (draft 2020-12), for editors and pipelines.
// A test holds it to the parser, which is stricter: what concerns several keys
// or classes is not in it.
func Schema() []byte { return append([]byte(nil), schema...) }
