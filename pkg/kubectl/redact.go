package kubectl

import "regexp"

const redacted = "(redacted)"

// secrets are the patterns that must not leave a cluster.
var secrets = []struct {
	shape *regexp.Regexp
	by    string
}{
	// PEM: keys, and certificates.
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----[\s\S]*?(-----END [A-Z0-9 ]+-----|\z)`), redacted},
	// JSON Web Tokens, such as those of service accounts.
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+`), redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "$1 " + redacted},
	// key=value and "key": "value", by the key's name. A field that names a Secret is not secret.
	{regexp.MustCompile(`(?i)\b([a-z0-9_.-]*(?:password|passwd|passphrase|api[_-]?key|private[_-]?key|secret[_-]?key|access[_-]?key|client[_-]?secret|auth[_-]?token))(\\?["']?\s*[:=]\s*)(\\?"[^"\n]*"|'[^'\n]*'|[^\s,;}"']+)`), "$1$2" + redacted},
	// The user information in a URL.
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@`), "$1" + redacted + "@"},
}

func redact(text []byte) []byte {
	for _, s := range secrets {
		text = s.shape.ReplaceAll(text, []byte(s.by))
	}
	return text
}
