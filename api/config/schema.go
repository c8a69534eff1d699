package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the file's JSON Schema (draft 2020-12), for editors and pipelines. The parser
// is stricter: the schema lacks checks across keys or classes.
func Schema() []byte { return append([]byte(nil), schema...) }
