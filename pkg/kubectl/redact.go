package kubectl

import "regexp"

// redacted takes the place of what was taken out.
const redacted = "(redacted)"

// secrets are the shapes of what must not leave a cluster.
var secrets = []struct {
	shape *regexp.Regexp
	by    string
}{
	// PEM: keys, and certificates.
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----[\s\S]*?(-----END [A-Z0-9 ]+-----|\z)`), redacted},
	// JSON Web Tokens, such as service accounts have.
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+`), redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "$1 " + redacted},
	// key=value and "key": "value", by the key's name. A field that names a Secret is not one.
	{regexp.MustCompile(`(?i)\b([a-z0-9_.-]*(?:password|passwd|passphrase|api[_-]?key|private[_-]?key|secret[_-]?key|access[_-]?key|client[_-]?secret|auth[_-]?token))(\\?["']?\s*[:=]\s*)(\\?"[^"\n]*"|'[^'\n]*'|[^\s,;}"']+)`), "$1$2" + redacted},
	// What is in an address before the host.
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@`), "$1" + redacted + "@"},
}

// redact blacks out what has the shape of a secret.
func redact(text []byte) []byte {
	for _, s := range secrets {
		text = s.shape.ReplaceAll(text, []byte(s.by))
	}
	return text
}
