// What `cluster up` needs and a shell cannot do without tools that may not be
// installed: a key pair that signs service account tokens, and free ports.
package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

func main() {
	err := fmt.Errorf("usage: helper keys DIR | helper ports COUNT")
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case "keys":
			err = keys(os.Args[2])
		case "ports":
			err = ports(os.Args[2])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// keys writes DIR/sa.pub, then DIR/sa.key, so that the second stands for both.
func keys(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return write(filepath.Join(dir, "sa.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

func write(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// ports prints COUNT free loopback ports. They are drawn at random below the
// range from which the kernel serves outgoing connections, so that neither such
// a connection nor another cluster starting now is likely to take one first.
func ports(text string) error {
	const low, high, tries = 20000, 32000, 1000
	count, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	for try := 0; try < tries && count > 0; try++ {
		n, err := rand.Int(rand.Reader, big.NewInt(high-low))
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+n.Int64()))
		if err != nil {
			continue
		}
		defer listener.Close() // held until all are found, so that they differ
		fmt.Println(low + n.Int64())
		count--
	}
	if count > 0 {
		return fmt.Errorf("no free port between %d and %d", low, high)
	}
	return nil
}
