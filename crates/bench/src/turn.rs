//! Whose turn it is: what is compared takes turns, so that nothing always follows the same other.

/// What runs in a round, in its order: each round begins one further.
pub fn in_turn<T: Copy>(all: &[T], round: u32) -> Vec<T> {
    let mut turned = all.to_vec();
    if !turned.is_empty() {
        turned.rotate_left((round as usize - 1) % all.len());
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_comes_first_once() {
        let all = ["one", "two", "three"];
        let firsts: Vec<&str> = (1..=3).map(|round| in_turn(&all, round)[0]).collect();
        assert_eq!(firsts, all);
        assert_eq!(in_turn(&all, 4), all);
        assert!(in_turn::<u8>(&[], 2).is_empty());
    }
}
