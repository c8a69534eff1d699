package luks

import (
	"strings"
	"testing"
)

func TestOnlyTheMappingThatWasAskedForIsAccepted(t *testing.T) {
	key := strings.Repeat("0a", 64)
	for _, c := range []struct{ params, want string }{
		{"aes-xts-plain64 " + key + " 0 253:7 32768", ""},
		{"aes-xts-plain64 " + key + " 0 253:7 32768 1 allow_discards", ""},
		{"aes-xts-plain64 " + key + " 0 253:7 32768 3 allow_discards same_cpu_crypt no_read_workqueue", ""},
		{"cipher_null-ecb - 0 253:7 32768", "cipher"},
		{"aes-cbc-essiv:sha256 " + key + " 0 253:7 32768", "cipher"},
		{"aes-xts-plain64 " + key[:64] + " 0 253:7 32768", "key"},
		{"aes-xts-plain64 :64:logon:cryptsetup:x 0 253:7 32768", "key"},
		{"aes-xts-plain64 " + key + " 8 253:7 32768", "initialization vector"},
		{"aes-xts-plain64 " + key + " 0 253:8 32768", "device"},
		{"aes-xts-plain64 " + key + " 0 253:7 8192", "first sector"},
		{"aes-xts-plain64 " + key + " 0 253:7 32768 1 sector_size:4096", "option"},
		{"aes-xts-plain64 " + key + " 0 253:7 32768 1 integrity:28:aead", "option"},
		{"aes-xts-plain64 " + key, "parameters"},
	} {
		err := verifyParams([]byte(c.params), 253, 7)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: error %v, want none", c.params, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want one about its %s", c.params, err, c.want)
		case err != nil && strings.Contains(err.Error(), "0a0a"):
			t.Errorf("the key is in the error %v", err)
		}
	}
}
